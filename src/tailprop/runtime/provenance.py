"""Provenance of a measurement: hardware, versions and commit."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

__all__ = ["provenance"]


def provenance(device: str = "cpu") -> dict[str, str]:
    """Hardware, threads, versions and commit, to be stored with every measured number."""
    return {
        "hardware": _hardware(device),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": version("timm"),
        "commit": _commit(),
    }


def _hardware(device: str) -> str:
    if device == "cuda":
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{os.cpu_count()} x {_cpu_name()}"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    here = Path(__file__).parent  # the package may be installed inside another repository, which does not track this file
    try:
        subprocess.run(["git", "ls-files", "--error-unmatch", __file__], cwd=here, capture_output=True, check=True, timeout=10)
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return described.stdout.strip()
