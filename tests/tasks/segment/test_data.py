"""Valid and invalid folders of images and label maps, and transforms of images with labels."""

import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from tailprop.data.broken import Broken
from tailprop.data.formats.label_maps import (
    IGNORE,
    ClassList,
    find_classes,
    read_classes,
    read_labelled,
    read_labels,
    read_pair,
)
from tailprop.data.samplers import SampleKey
from tailprop.data.shapes.render import SHAPES, SceneConfig, make_scene
from tailprop.data.shapes.write import ensure_ade20k, write_ade20k
from tailprop.tasks.segment.config import SegmentAugmentConfig, SegmentDataConfig
from tailprop.tasks.segment.data import (
    GROUND,
    Augment,
    SegmentationDataset,
    collate,
    distort,
    is_mixed,
    normalise,
    open_labelled,
    resize,
)

SMALL = SceneConfig(size_px=64, crowd=0.5, seed=3)
NAMES = ("ground", *SHAPES)


def write_pair(root: Path, name: str, labels: Any, size: tuple[int, int] | None = None) -> None:
    labels = np.asarray(labels, dtype=np.uint8)
    for folder in ("images", "labels"):
        (root / folder).mkdir(exist_ok=True)
    Image.new("RGB", size or labels.shape[::-1], "gray").save(root / "images" / f"{name}.jpg")
    Image.fromarray(labels).save(root / "labels" / f"{name}.png")


def read(root: Path, classes: int = 3, first_label: int = 1) -> Any:
    part = read_labelled(root / "images", root / "labels", [f"c{i}" for i in range(classes)], first_label)
    return part, [read_pair(pair, classes, first_label) for pair in part.pairs]


def test_ade20k_folders_have_exact_labels(tmp_path: Path) -> None:
    write_ade20k(tmp_path, SMALL, train=2, val=2)
    part = open_labelled(SegmentDataConfig(root=tmp_path), "validation")
    assert part.classes == NAMES
    for number, (image, labels, index) in enumerate(SegmentationDataset(part)[SampleKey(i, i)][0] for i in range(2)):
        scene = make_scene(SMALL, 2 + number)
        assert index == number
        assert np.array_equal(labels.numpy(), scene.labels().astype(int) - 1)  # 0, which is unlabelled, becomes IGNORE
        assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - scene.image).mean() < 16  # JPEG
    assert IGNORE == -1


def test_the_150_classes_of_ade20k(tmp_path: Path) -> None:
    classes = find_classes(tmp_path, "ade20k")
    names = classes.names
    assert classes.first_label == 1
    assert len(set(names)) == 150
    assert (names[0], names[2], names[12], names[20], names[149]) == ("wall", "sky", "person", "car", "flag")


def test_lists_of_classes(tmp_path: Path) -> None:
    (tmp_path / "objectInfo150.txt").write_text("Idx\tRatio\tTrain\tVal\tStuff\tName\n1\t0.2\t1\t1\t1\tbuilding, edifice\n")
    assert find_classes(tmp_path, None) == ClassList(("building, edifice",), first_label=1)
    (tmp_path / "mine.txt").write_text("cat\n\nsmall dog\n")
    assert find_classes(tmp_path, "mine.txt") == ClassList(("cat", "small dog"), first_label=0)
    (tmp_path / "table.txt").write_text("Idx\tName\n3\tcat\n4\tdog\n")
    assert find_classes(tmp_path, "table.txt") == ClassList(("cat", "dog"), first_label=3)
    (tmp_path / "table.txt").write_text("\ufeffRatio\tIdx\tName\n0.2\t1\tcat\n0.1\t2\tdog\n", encoding="utf-8")
    assert find_classes(tmp_path, "table.txt") == ClassList(("cat", "dog"), first_label=1)
    (tmp_path / "table.txt").write_text("Ratio\tName\n0.2\tcat\n")
    with pytest.raises(ValueError, match="has no column Idx"):
        read_classes(tmp_path / "table.txt")
    (tmp_path / "table.txt").write_text("Name\ncat\n")  # a plain list whose first class is called Name
    assert read_classes(tmp_path / "table.txt") == ClassList(("Name", "cat"), first_label=0)
    for labels in (("3", "5"), ("x", "1")):
        (tmp_path / "table.txt").write_text(f"Idx\tName\n{labels[0]}\tcat\n{labels[1]}\tdog\n")
        with pytest.raises(ValueError, match=r"the labels in column Idx of .*table\.txt must be consecutive"):
            read_classes(tmp_path / "table.txt")
    (tmp_path / "twice.txt").write_text("cat\ncat\n")
    with pytest.raises(ValueError, match="has 'cat' twice"):
        read_classes(tmp_path / "twice.txt")
    with pytest.raises(ValueError, match="no list of classes nowhere"):
        find_classes(tmp_path, "nowhere.txt")
    with pytest.raises(ValueError, match="write their names to"):
        find_classes(tmp_path / "labels", None)


@pytest.mark.parametrize(("first", "expected"), [(1, [-1, 0, 1, 2, -1]), (0, [0, 1, 2, 3, -1]), (2, [-1, -1, 0, 1, -1])])
def test_pixel_values_become_class_indices(first: int, expected: list[int], tmp_path: Path) -> None:
    write_pair(tmp_path, "a", [[0, 1, 2, 3, 255]])
    labels = read_labels(tmp_path / "labels" / "a.png", 4, first)
    assert labels.tolist() == [expected]


def test_label_maps_with_palette_or_16_bits(tmp_path: Path) -> None:
    numbers = np.arange(12, dtype=np.uint8).reshape(3, 4)
    palette = Image.fromarray(numbers)
    palette.putpalette([7] * 768)  # colours mean nothing
    palette.save(tmp_path / "p.png")
    Image.fromarray(numbers.astype(np.uint16) * 50).save(tmp_path / "w.png")
    assert np.array_equal(read_labels(tmp_path / "p.png", 20, 0), numbers)
    wide = read_labels(tmp_path / "w.png", 600, 0)
    assert wide.max() == 550  # with more than 255 classes, 255 is one of them


@pytest.mark.parametrize(
    ("labels", "size", "name", "reason"),
    [
        ([[1, 2], [3, 9]], None, "labels/a.png", "it has labels that are not a class: 9 (1 pixels); the 3 classes are 1 to 3"),
        ([[1, 2], [3, 3]], (5, 4), "labels/a.png", "it is 2x2, but its image"),
    ],
)
def test_invalid_label_map_is_named(labels: Any, size: Any, name: str, reason: str, tmp_path: Path) -> None:
    write_pair(tmp_path, "a", labels, size)
    _, (found,) = read(tmp_path)
    assert isinstance(found, Broken)
    assert found.name == str(tmp_path / name)
    assert reason in found.reason


@pytest.mark.parametrize(("bits", "pixels"), [(1, 0b01000000), (2, 0b00011011), (4, 0x0123)])
def test_label_maps_with_few_bits(bits: int, pixels: int, tmp_path: Path) -> None:
    values = [0, 1] if bits == 1 else [0, 1, 2, 3]
    row = b"\0" + pixels.to_bytes(2 if bits == 4 else 1, "big")
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", len(values), 1, bits, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(row)),
        (b"IEND", b""),
    ]
    parts = (struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in chunks)
    (tmp_path / "few.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    assert read_labels(tmp_path / "few.png", 9, 0).tolist() == [values]


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    for name in "abcd":
        write_pair(tmp_path, name, [[1, 2]])
    (tmp_path / "labels" / "a.png").unlink()
    (tmp_path / "images" / "b.jpg").unlink()
    (tmp_path / "images" / "c.jpg").write_bytes(b"nothing")
    Image.new("RGB", (2, 1)).save(tmp_path / "labels" / "d.png")
    part, found = read(tmp_path)
    assert {item.name.rpartition("/")[2]: item.reason for item in part.broken} == {
        "a.jpg": f"its label map {tmp_path}/labels/a.png is missing",
        "b.png": f"its image is missing in {tmp_path}/images",
    }
    assert [str(item) for item in found] == [
        f"{tmp_path}/images/c.jpg: not an image",
        f"{tmp_path}/labels/d.png: its mode is RGB, but a label map has one value per pixel; for colours, name their table "
        "with --data.colors",
    ]
    for path in (tmp_path / "labels").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"no image of .* has a label map in .*; the first: .*a\.jpg"):
        read_labelled(tmp_path / "images", tmp_path / "labels", ["a"], 1)


def test_broken_image_is_replaced_in_training(tmp_path: Path) -> None:
    write_pair(tmp_path, "a", np.full((40, 40), 9))
    write_pair(tmp_path, "b", np.full((40, 40), 2))
    part, _ = read(tmp_path)
    augment = Augment(SegmentAugmentConfig(crop_px=32), 40, 40)
    for seed in range(20):
        batch = collate([SegmentationDataset(part, augment)[SampleKey(index, seed)] for index in (0, 1)])
        assert batch.indices == [1, 1]
        assert {item.name for item in batch.broken} == {str(tmp_path / "labels" / "a.png")}
    assert collate([SegmentationDataset(part)[SampleKey(0, 0)]]).indices == []


def test_classes_are_mapped_to_those_of_the_model(tmp_path: Path) -> None:
    write_pair(tmp_path, "a", [[0, 1, 2, 3]])
    part, _ = read(tmp_path)
    (example,) = SegmentationDataset(part, order=[7, 0, 5])[SampleKey(0, 0)]
    assert not isinstance(example, Broken)
    assert example[1].tolist() == [[-1, 7, 0, 5]]


# Transforms


def coded(h: int, w: int) -> tuple[Tensor, Tensor]:
    """Labels in large patches and an image whose red channel encodes them."""
    coarse = torch.randint(0, 6, (1, 1, -(-h // 24), -(-w // 24)), generator=torch.Generator().manual_seed(0))
    labels = coarse.repeat_interleave(24, 2).repeat_interleave(24, 3)[0, 0, :h, :w].to(torch.int16)
    image = torch.stack([labels * 40, labels.flip(0) * 0 + 90, labels * 0]).to(torch.uint8)
    return image, labels


@pytest.mark.parametrize("size", [(96, 160), (61, 45), (200, 33)])
def test_augmentation_keeps_labels_aligned(size: tuple[int, int]) -> None:
    image, labels = coded(*size)
    augment = Augment(SegmentAugmentConfig(crop_px=64, distort=0.0), 48, 192)
    for seed in range(12):
        random.seed(seed)
        cut, known = augment(image, labels)
        assert cut.shape == (3, 64, 64)
        assert known.shape == (64, 64)
        inside = known != IGNORE
        assert (cut[:, ~inside] == torch.tensor(GROUND, dtype=torch.uint8)[:, None]).all()  # padding is ignored
        assert (cut[1][inside] == 90).all()
        exact = (cut[0].float() / 40 - known).abs()[inside] < 0.5  # except at bilinear edges
        assert exact.float().mean() > 0.8
        assert (cut[0] == known * 40)[inside].float().mean() > 0.6


def test_resize_matches_torchvision() -> None:
    image, labels = coded(50, 80)
    small, known = resize(image, labels, 33, 1000)
    assert small.shape == (3, 33, 53)  # 80 * 33 / 50 = 52.8
    theirs = v2.functional.resize(image.float(), [33, 53], antialias=False)
    assert (small - theirs).abs().max() <= 0.5
    nearest = v2.functional.resize(labels[None].float(), [33, 53], v2.InterpolationMode.NEAREST_EXACT)[0]
    assert torch.equal(known.float(), nearest)
    assert resize(image, labels, 500, 40)[1].shape == (25, 40)  # limited by the longer side


def test_padding_is_zero_for_the_model() -> None:
    ground = torch.tensor(GROUND, dtype=torch.uint8)[None, :, None, None]
    assert normalise(ground).abs().max() < 0.01
    image = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    theirs = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])(image / 255)
    assert torch.allclose(normalise(image), theirs, atol=1e-6)


def test_crops_dominated_by_one_class_are_avoided() -> None:
    labels = torch.zeros(64, 256, dtype=torch.int16)
    labels[:, 200:] = 1
    labels[:, 230:] = 2
    image = labels[None].repeat(3, 1, 1).to(torch.uint8)
    shares = {}
    for most in (0.75, 1.0):
        augment = Augment(SegmentAugmentConfig(resize=(1, 1), crop_px=64, cat_max_ratio=most, distort=0.0), 64, 256)
        random.seed(0)
        cuts = [augment(image, labels)[1] for _ in range(60)]
        shares[most] = np.mean([torch.bincount(cut.flatten().long()).max().item() / 64**2 >= 0.75 for cut in cuts])
    assert shares[1.0] > 0.6
    assert shares[0.75] < 0.2  # ten tries may fail
    assert is_mixed(torch.tensor([0, 0, 1, 1, IGNORE, IGNORE]), 0.75)
    assert not is_mixed(torch.tensor([0, 0, 0, 1]), 0.75)
    assert not is_mixed(torch.tensor([2, 2, IGNORE]), 0.75)
    assert not is_mixed(torch.tensor([IGNORE]), 0.75)


def test_photometric_distortion() -> None:
    image = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(distort(image, 0.0), image)
    random.seed(0)
    changed = [distort(image, 1.0) for _ in range(20)]
    assert len({c.float().mean().item() for c in changed}) == 20
    assert {c.dtype for c in changed} == {torch.uint8}
    gray = torch.full((3, 8, 8), 120, dtype=torch.uint8)
    for _ in range(20):
        result = distort(gray, 1.0)
        assert (result == result[0, 0, 0]).all()  # hue and saturation do not change gray
        assert (120 - 32) * 0.5 - 1 <= result[0, 0, 0] <= (120 + 32) * 1.5 + 1


def test_hue_matches_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    image = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    draws = iter([1.0, 1.0, 1.0, 0.0, 1.0])  # neither contrast nor brightness nor saturation, but hue
    monkeypatch.setattr("random.random", lambda: next(draws))
    monkeypatch.setattr("random.uniform", lambda *_: 0.1)
    theirs = v2.functional.adjust_hue(image, 0.1)
    assert (distort(image, 0.5).int() - theirs.int()).abs().float().mean() < 3  # eight bits of hue


def test_example_is_a_function_of_its_key(tmp_path: Path) -> None:
    ensure_ade20k(tmp_path, SMALL, 2, 1)
    ensure_ade20k(tmp_path, SMALL, 2, 1)  # generated once
    with pytest.raises(ValueError, match="generated with other settings"):
        ensure_ade20k(tmp_path, SMALL, 3, 1)
    part = open_labelled(SegmentDataConfig(root=tmp_path), "train")
    data = SegmentationDataset(part, Augment(SegmentAugmentConfig(crop_px=48), 64, 64))
    first, again, other = (data[SampleKey(0, seed)][0] for seed in (5, 5, 6))
    assert not isinstance(first, Broken)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_fingerprint_changes_with_files_and_classes(tmp_path: Path) -> None:
    write_pair(tmp_path, "a", [[1, 2]])
    before = read(tmp_path)[0].fingerprint()
    assert read(tmp_path)[0].fingerprint() == before
    assert read(tmp_path, classes=4)[0].fingerprint() != before
    write_pair(tmp_path, "b", [[1, 2]])
    assert read(tmp_path)[0].fingerprint() != before


def test_images_and_label_maps_in_one_folder(tmp_path: Path) -> None:
    write_pair(tmp_path, "a", [[1, 2]])
    (tmp_path / "labels" / "a.png").rename(tmp_path / "images" / "a.png")
    part = read_labelled(tmp_path / "images", tmp_path / "images", ["c0", "c1"], 1)
    assert [pair.image.name for pair in part.pairs] == ["a.jpg"]
    assert not part.broken
