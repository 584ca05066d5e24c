"""`tailprop push RUN USER/NAME`: upload a run to the Hugging Face Hub, with a model card from its manifest."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import tyro

from tailprop.engine.options import Checkpoint
from tailprop.engine.run_settings import find_settings, find_task_name, find_weights
from tailprop.tasks import DEFAULT_TASK, find_spec
from tailprop.utils.files import make_folder, write_atomically, write_json, write_text
from tailprop.utils.text import say
from tailprop.utils.validation import check_output_folder

__all__ = ["Push", "run", "write_folder"]

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_LICENSE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


@dataclass(frozen=True)
class Push:
    """Upload a run to the Hugging Face Hub: weights as safetensors, timm's config.json and a model card."""

    checkpoint: Checkpoint
    """A run folder or exported weights."""
    repo: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="USER/NAME")]
    """Repository on the Hub; it is created if it does not exist."""
    dry_run: Path | None = None
    """Write the files into this folder instead of uploading them; needs no network."""
    license: str = "other"
    """Licence of the weights, as the Hub names it, for example apache-2.0 or cc-by-4.0; the licences of the training data
    matter."""
    private: bool = False
    """Create the repository as a private one."""
    message: str = "Upload a run of TailProp"
    """Message of the commit on the Hub."""

    def check(self) -> None:
        if not _NAME.fullmatch(self.repo):
            raise ValueError(f"{self.repo!r} is not the name of a repository; give USER/NAME, for example ada/flowers-pico")
        if not _LICENSE.fullmatch(self.license):
            raise ValueError(f"--license {self.license!r} is not an identifier of the Hub, such as apache-2.0")
        if self.dry_run is not None:
            check_output_folder("--dry-run", self.dry_run)
            if self.dry_run.is_dir() and any(self.dry_run.iterdir()):
                raise ValueError(f"--dry-run: {self.dry_run} is not empty; name a new folder")


def run(options: Push) -> None:
    options.check()
    if options.dry_run is not None:
        files = write_folder(options, options.dry_run)
        say(f"{options.dry_run}: {', '.join(files)}; nothing was uploaded")
        return
    with TemporaryDirectory() as folder:
        write_folder(options, Path(folder))
        say(f"https://huggingface.co/{options.repo}: {_upload(options, Path(folder))}")


def write_folder(options: Push, out: Path) -> list[str]:
    """Write the files of the repository; returns their names."""
    spec = find_spec(find_task_name(options.checkpoint, DEFAULT_TASK) or DEFAULT_TASK)
    weights = find_weights(options.checkpoint)
    if weights.suffix != ".safetensors":
        raise ValueError(f"{options.checkpoint} has no intact model.safetensors; only those weights are uploaded, no pickles")
    found = spec.part(spec.load)(options.checkpoint)  # verified, and known to load
    config = spec.part(spec.hub)(found) if spec.hub is not None else None
    make_folder(out)
    write_atomically(out / weights.name, lambda part: shutil.copyfile(weights, part))
    if config is not None:
        write_json(out / "config.json", config)
    from tailprop.engine.model_card import model_card

    settings = find_settings(options.checkpoint) or {}
    card = model_card(spec, Path(options.checkpoint), found, settings, options.repo, options.license, config is not None)
    write_text(out / "README.md", card)
    return sorted(path.name for path in out.iterdir())


def _upload(options: Push, folder: Path) -> str:
    """Create the repository if it does not exist, and upload the folder; returns the commit."""
    from huggingface_hub import HfApi

    from tailprop.tasks.common.hub import explained

    with explained(options.repo):
        api = HfApi()
        api.create_repo(options.repo, private=options.private, exist_ok=True)
        commit: Any = api.upload_folder(repo_id=options.repo, folder_path=folder, commit_message=options.message)
    return f"uploaded {json.dumps(sorted(p.name for p in folder.iterdir()))[1:-1]} ({getattr(commit, 'oid', '')[:8]})"
