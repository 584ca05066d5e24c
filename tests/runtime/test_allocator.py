"""The allocator keeps freed memory."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from tailprop.runtime.allocator import keep_freed_memory
keep_freed_memory()
for step in range(12):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for megabytes in (3, 40, 3):
        torch.ones(megabytes << 18)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_kept_memory_causes_no_page_faults() -> None:
    def faults(switch: str) -> int:
        env = os.environ | {"TAILPROP_KEEP_MEMORY": switch}
        return int(subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=env).stdout)

    assert faults("") < faults("0") / 5  # each of ten steps would allocate its large block again
