"""Images of a folder, or of the Parquet shards of a Hugging Face image dataset, by index."""

from pathlib import Path
from typing import Protocol

from PIL import Image

from tailprop.data.broken import Broken
from tailprop.data.images import decode_image, describe_error, list_images, open_image
from tailprop.data.splits import Contents, hash_parts

__all__ = ["Photos", "open_photos"]


class Photos(Protocol):
    def __len__(self) -> int: ...
    def read(self, index: int) -> Image.Image | Broken: ...
    def name(self, index: int) -> str: ...
    def contents(self) -> Contents | None: ...
    def fingerprint(self) -> str: ...


class _Files:
    def __init__(self, folder: Path) -> None:
        self.paths = list_images([str(folder)])

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> Image.Image | Broken:
        path = self.paths[index]
        try:
            with open_image(path) as file:
                return decode_image(file, "RGB")
        except Exception as error:  # decoders raise many kinds of errors on corrupt files
            return Broken(str(path), describe_error(error))

    def name(self, index: int) -> str:
        return self.paths[index].name

    def contents(self) -> Contents:
        return Contents.of_files(self.paths)

    def fingerprint(self) -> str:
        return hash_parts(sorted(f"{path.name} {path.stat().st_size}\n" for path in self.paths))


class _Shards:
    def __init__(self, folder: Path, split: str) -> None:
        from tailprop.data.formats.parquet import Parquet

        self.parquet = Parquet(folder, split)

    def __len__(self) -> int:
        return len(self.parquet.labels)

    def read(self, index: int) -> Image.Image | Broken:
        try:
            return decode_image(self.parquet.read(index), "RGB")
        except Exception as error:
            return Broken(self.parquet.name(index), describe_error(error))

    def name(self, index: int) -> str:
        return self.parquet.name(index)

    def contents(self) -> Contents | None:
        return self.parquet.contents()

    def fingerprint(self) -> str:
        return hash_parts(f"{shard.name} {shard.stat().st_size}\n" for shard in self.parquet.shards)


def open_photos(folder: Path, split: str) -> Photos:
    """The photographs of a folder, searched recursively; of a folder with Parquet shards, those of the split."""
    shards = any(folder.glob("*.parquet")) or any(folder.glob("data/*.parquet"))
    return _Shards(folder, split) if shards else _Files(folder)
