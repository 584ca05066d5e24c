"""`tailprop predict` for an exported detector, which holds its backbone and feature pyramid: there is nothing to predict."""

from tailprop.tasks.common.exported import open_exported
from tailprop.tasks.detect.options import DetectPredict

__all__ = ["run"]


def run(options: DetectPredict) -> None:
    options.check()
    open_exported(options)  # raises: the file has feature maps
    raise ValueError(f"{options.checkpoint} is not a detector's pyramid; export it again")
