"""`tailprop scenes`: generate scenes of shapes in the formats of real datasets."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tailprop.data.shapes.render import SceneConfig
from tailprop.data.shapes.write import write_scenes
from tailprop.utils.text import say
from tailprop.utils.validation import check_at_least


@dataclass(frozen=True)
class Scenes:
    """Generate scenes of shapes."""

    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """Output folder; it must be new, empty, or hold the same scenes, possibly incomplete."""
    format: Literal["coco", "ade20k", "parquet"] = "coco"
    """coco: boxes and masks; ade20k: label maps; parquet: one class for each image."""
    count: int = 200
    """Number of training scenes."""
    val: int = 50
    """Number of validation scenes."""
    scenes: tyro.conf.OmitArgPrefixes[SceneConfig] = field(default_factory=SceneConfig)

    def check(self) -> None:
        check_at_least("count", self.count, 1)
        check_at_least("val", self.val, 1)
        self.scenes.check()


def run(options: Scenes) -> None:
    options.check()
    write_scenes(options.out, options.format, options.scenes, options.count, options.val)
    say(f"{options.count} training and {options.val} validation scenes in {options.out}")
