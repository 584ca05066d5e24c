"""Autocast for a precision by name."""

import torch

__all__ = ["autocast"]


def autocast(device: torch.device, precision: str) -> torch.autocast:
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision != "fp32")
