"""`tailprop figure`: every figure from small networks, its files and its error messages."""

import html
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

import tailprop_cli
from tailprop.backbone.operator import VARIANTS
from tailprop.studies.figures import (
    FIGURES,
    MOST_PX,
    complexity,
    diagnostics,
    gates,
    impulse,
    kernels,
    receptive_field,
    sources,
)
from tailprop.studies.figures.checkpoints import find_checkpoints
from tailprop.studies.figures.inputs import Inputs
from tailprop.studies.figures.network import load_network
from tests.helpers.figures import inputs_of, nothing, read_csv, write_images, write_network
from tests.helpers.folders import make_snapshot
from tests.helpers.tiny_tasks import TASKS, write_tiny


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexity, "SIDES", (4, 6, 8, 10))
    monkeypatch.setattr(receptive_field, "LEAST_PX", 32)
    monkeypatch.setattr(kernels, "FRAMES", 3)
    monkeypatch.setattr(kernels, "SIDE", 33)


def figure(*args: object) -> int:
    return tailprop_cli.main(["figure", *map(str, args)])


def check_picture(path: Path) -> None:
    with Image.open(path) as image:
        assert min(image.size) > 300
        pixels = np.asarray(image.convert("RGB"), float)
    assert pixels.std() > 10  # something is drawn
    for edge in (pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:]):
        assert edge.min() > 200, "something is cut off at the edge"


def test_all_figures_with_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        write_network(tmp_path / "heat", mixer="heat"),
        write_network(tmp_path / "seed0"),
        write_network(tmp_path / "seed1", seed=1),
        write_network(tmp_path / "ours", mixer="multiscale"),
    ]
    out, images = tmp_path / "out $x$ & \u56fe", write_images(tmp_path / "my images")
    assert figure("all", "--checkpoint", *runs, "--images", images, "--out", out, "--count", 4, "--map-px", 17) == 0
    twice = [f"{name}_{mixer}" for name in ("gates", "impulse", "sources") for mixer in ("tailprop", "multiscale")]
    names = [
        "receptive_field",
        "receptive_field_reach",
        "receptive_field_cases",
        *twice,
        "diagnostics",
        "complexity",
        "kernels",
    ]
    assert {path.name for path in out.iterdir()} == {
        *(f"{name}.{kind}" for name in names for kind in ("png", "pdf", "csv")),
        "kernels.gif",
        "index.html",
    }
    page = (out / "index.html").read_text()
    assert all(f'src="{name}.png"' in page and f'href="{name}.csv"' in page for name in names)
    assert "top-1 62.2 %" in page
    command = html.unescape(page.partition("<code>")[2].partition("</code>")[0])
    again = ["all", "--checkpoint", *runs, "--images", str(images), "--out", str(out), "--count", "4", "--map-px", "17"]
    assert shlex.split(command) == ["tailprop", "figure", *again]
    assert len(set(re.findall(r"<h2 id=.*?>(.*?)</h2>", page))) == len(names)  # no two figures have one heading
    for name in names:
        check_picture(out / f"{name}.png")
    with Image.open(out / "kernels.gif") as animation:
        assert getattr(animation, "n_frames", 1) > 3
    assert "index.html shows all of them" in capsys.readouterr().out
    check_receptive_fields(read_csv(out / "receptive_field.csv"))
    check_diagnostics(read_csv(out / "diagnostics.csv"), runs)


def check_receptive_fields(rows: list[dict[str, str]]) -> None:
    assert [(row["mixer"], row["state"]) for row in rows] == [
        (mixer, state) for mixer in ("heat", "tailprop", "multiscale") for state in receptive_field.STATES
    ]
    assert all(0 < float(row["area_50_pct"]) < float(row["area_90_pct"]) <= 100 for row in rows)
    assert {row["images"] for row in rows} == {"4"}


def check_diagnostics(rows: list[dict[str, str]], runs: list[str]) -> None:
    assert [row["checkpoint"] for row in rows[::2]] == runs[1:]  # two stages each; heat has none
    for row in rows:
        assert all(0 <= float(row[name]) <= 1 for name in diagnostics.LABELS)


@pytest.mark.parametrize("variant", [*VARIANTS, "multiscale"])
def test_every_variant_can_be_drawn(variant: str, tmp_path: Path) -> None:
    run, images = write_network(tmp_path / "run", mixer=variant), write_images(tmp_path / "images", 3)
    inputs = inputs_of(run, images=images, count=3, map_px=17, stage=2)
    for module in (gates, impulse, sources, diagnostics):
        (picture,) = module.draw(inputs, nothing)
        assert picture.rows
    bars = [row for row in gates.draw(inputs, nothing)[0].rows if row["quantity"] != "response"]
    depends = len({row["value"] for row in bars if row["stage"] == 2}) > 1
    assert depends == (variant in ("tailprop", "dual_gaussian", "adaptive_alpha", "multiscale"))


def test_work_of_every_figure_adds_up(tmp_path: Path) -> None:
    """The progress bar reaches its end."""
    runs = [write_network(tmp_path / "a"), write_network(tmp_path / "b", mixer="multiscale")]
    inputs = inputs_of(*runs, images=write_images(tmp_path / "images"), count=4, map_px=17)
    for module in (receptive_field, gates, impulse, sources, diagnostics, complexity, kernels):
        shares: list[float] = []
        module.draw(inputs, shares.append)
        assert sum(shares) == pytest.approx(1.0), module.__name__


def test_figure_from_parquet_shards(tmp_path: Path) -> None:
    run = write_network(tmp_path / "run")
    shards = make_snapshot(tmp_path / "data", {"train": [0] * 4, "validation": [10, 90, 250, 170]}, classes=300)
    assert figure("gates", "--checkpoint", run, "--images", shards, "--out", tmp_path / "out", "--count", 4) == 0
    names = {row["image"] for row in read_csv(tmp_path / "out" / "gates.csv")}
    assert len(names) == 3
    assert all(name.startswith("validation-") for name in names)


@pytest.mark.parametrize("name", ["gates", "impulse", "sources", "diagnostics"])
def test_network_without_propagation(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, images = write_network(tmp_path / "run", mixer="wave"), write_images(tmp_path / "images")
    assert figure(name, "--checkpoint", run, "--images", images, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "has no tail propagation operator (its mixer is wave)" in error
    assert error.count("\n") == 1


def test_all_leaves_out_what_a_network_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, images = write_network(tmp_path / "run", mixer="wave"), write_images(tmp_path / "images")
    assert figure("all", "--checkpoint", run, "--images", images, "--out", tmp_path / "out", "--count", 3) == 0
    assert "left out: gates, impulse, sources, diagnostics" in capsys.readouterr().out
    assert "left out: gates" in (tmp_path / "out" / "index.html").read_text()


def test_foreign_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tailprop.engine.checkpoint import save_weights

    (tmp_path / "config.yaml").write_text(yaml.safe_dump(dict(model=dict(name="convnext_atto"), data={}, augment={})))
    model = timm.create_model("convnext_atto", num_classes=5)
    save_weights(tmp_path / "model.safetensors", model, dict(architecture="convnext_atto", num_classes="5"))
    assert figure("impulse", "--checkpoint", tmp_path) == 2
    error = capsys.readouterr().err
    assert "is a convnext_atto, which has no layers of this package" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["gate"], "no figure 'gate'; did you mean gates?"),
        (["gates"], "figure gates needs a trained network; give run folders with --checkpoint"),
        (["receptive-field", "--checkpoint", "x"], "figure receptive-field needs images; give a folder with --images"),
        (["kernels", "--count", "2"], "--count must be at least 3, got 2"),
        (["kernels", "--map-px", "5"], "--map-px must be between 9 and 257, got 5"),
        (["gates", "--checkpoint", "nowhere", "--images", "x"], "no checkpoint at nowhere"),
        (["gates", "--checkpoint", "runs/*/none", "--images", "x"], "no checkpoint matches 'runs/*/none'"),
        (["kernels", "--size-px", "0"], "--size-px must be between 32 and 1024, got 0"),
        (["kernels", "--seed", "-1"], "--seed must be at least 0, got -1"),
    ],
)
def test_error_messages(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert figure(*args) == 2
    assert message in capsys.readouterr().err


def test_patterns_name_every_checkpoint_once(tmp_path: Path) -> None:
    runs = [write_network(tmp_path / f"seed{seed}", seed=seed) for seed in (0, 1)]
    weights = f"{runs[1]}/model.safetensors"
    assert find_checkpoints([str(tmp_path / "seed*"), weights, runs[0]]) == runs
    assert find_checkpoints([weights, runs[1]]) == [weights]


def test_weights_without_a_head_and_without_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As timm's `features_only` saves them, here without the last stage."""
    path = tmp_path / "features.safetensors"
    network = timm.create_model("tailprop_pico", features_only=True, out_indices=(0, 1))
    save_file(network.state_dict(), path)
    images, out = write_images(tmp_path / "images", 3), tmp_path / "out"
    args = ("receptive-field", "--checkpoint", path, "--images", images, "--out", out, "--size-px", 64)
    assert figure(*args) == 2
    assert "does not contain the name of its model; give it with --model" in capsys.readouterr().err
    assert figure(*args, "--model", "tailprop_pico") == 0
    loaded = load_network(str(path), 64, "tailprop_pico")
    x = torch.randn(2, 3, 64, 64)
    assert torch.allclose(loaded.run(x), network.eval()(x)[-1].permute(0, 2, 3, 1), atol=1e-5)
    save_file({"a": torch.zeros(1)}, path)
    assert figure(*args, "--model", "tailprop_pico") == 2
    assert "does not fit tailprop_pico: it has no stem or no stages" in capsys.readouterr().err


def test_large_photographs_are_shrunk(tmp_path: Path) -> None:
    Image.new("RGB", (2 * MOST_PX + 7, 3 * MOST_PX)).save(tmp_path / "large.png")
    ((_, image),) = Inputs((), tmp_path).photos
    assert image.size == (MOST_PX + 4, 3 * MOST_PX // 2)


def test_pictures_of_any_kind(tmp_path: Path) -> None:
    """Gray, palette, transparent, 16 bits, turned by EXIF, tiny, very long, in folders, beside files that are no images."""
    folder = tmp_path / "\u0444\u043e\u0442\u043e \u56fe $a_b$"
    (folder / "inner folder").mkdir(parents=True)
    sides = Image.fromarray(np.repeat(np.repeat([[[255, 0, 0], [0, 0, 255]]], 60, 0), 40, 1).astype(np.uint8))  # red, blue
    for mode in ("RGB", "L", "P", "RGBA", "LA", "1", "I;16"):
        sides.convert("L" if mode == "I;16" else mode).convert(mode).save(folder / f"{mode.replace(';', ' ')} \u00fc.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it
    sides.save(folder / "inner folder" / "turned.jpg", exif=exif, quality=95)
    Image.new("RGB", (1, 1), "green").save(folder / "tiny.png")
    Image.new("RGB", (3, 700), "yellow").save(folder / "strip.webp")
    sides.convert("CMYK").save(folder / "print.jpeg")
    (folder / "notes.txt").write_text("no image")
    (folder / "empty.jpg").touch()
    inputs = inputs_of(write_network(tmp_path / "\u6a21\u578b"), images=folder, count=99)
    samples = {sample.name: sample for sample in inputs.samples(inputs.networks[0])}
    assert len(samples) == 11
    assert all(sample.x.shape == (3, 64, 64) and torch.isfinite(sample.x).all() for sample in samples.values())
    above, below = (np.asarray(samples["turned.jpg"].shown)[row].mean(0) for row in (5, -5))
    assert above[0] > 200 > 50 > above[2]  # what was at the left is above
    assert below[2] > 200 > 50 > below[0]
    for module in (gates, receptive_field):
        rows = module.draw(inputs, nothing)[-1].rows
        assert {row["image"] for row in rows} <= set(samples)


def test_missing_and_broken_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, images = write_network(tmp_path / "run"), tmp_path / "images"
    args = ("gates", "--checkpoint", run, "--images", images, "--out", tmp_path / "out")
    assert figure(*args) == 2
    assert "no folder" in capsys.readouterr().err
    images.mkdir()
    (images / "broken.png").write_bytes(b"no image")
    assert figure(*args) == 2
    assert "none of the 1 images" in capsys.readouterr().err
    write_images(images, 3)
    assert figure(*args) == 0  # the broken one is passed over


def test_every_figure_is_named_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        figure("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert all(name.replace("_", "-") in text for name in FIGURES)


@pytest.mark.parametrize("task", TASKS)
def test_networks_of_every_task(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = write_tiny(task)
    assert tailprop_cli.main(["train", str(recipe), "--run.out", "run", "--optim.epochs", "1"]) == 0
    inputs = inputs_of("run", images=write_images(Path("images"), 3), count=3)
    (picture,) = diagnostics.draw(inputs, nothing)
    assert {row["stage"] for row in picture.rows} == set(range(1, 1 + len(inputs.networks[0].stages)))
    assert len(receptive_field.draw(inputs, nothing)[0].rows) == 3
