"""Shared parts of the benchmarks."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tailprop.runtime.memory import peak_bytes
from tailprop.tasks.detect import bench as bench_detect
from tailprop.tasks.detect.options import BenchDetect

MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child starts with its own peak")
def test_peak_memory_excludes_the_parent() -> None:
    large = np.ones(800 * MIB, dtype=np.uint8)
    assert peak_bytes() > large.nbytes
    code = "from tailprop.runtime.memory import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 10 * MIB < int(done.stdout) < large.nbytes


def _die(_name: str, _options: BenchDetect) -> float:
    os._exit(1)


def test_dead_measuring_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_detect, "_peak_gb", _die)
    with pytest.raises(ValueError, match="the process that measures tailprop_pico died"):
        bench_detect._memory("tailprop_pico", BenchDetect())
