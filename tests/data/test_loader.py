"""Samplers, seeds, batch augmentation, caching and accuracy."""

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from timm.data import create_transform
from torchvision.transforms import Compose

from tailprop.data.broken import Broken, BrokenFiles
from tailprop.data.samplers import EvalSampler, SampleKey, TrainSampler
from tailprop.runtime.distributed import World
from tailprop.runtime.rng import mix_seeds, seeded
from tailprop.tasks.classify.augment import BatchAugment, RandomResizedCrop, eval_transform, jitter_colors, train_transforms
from tailprop.tasks.classify.config import AugmentConfig, DataConfig
from tailprop.tasks.classify.data import Batch, ImageDataset
from tailprop.tasks.classify.metrics import evaluate_classifier
from tailprop.tasks.classify.sources import Digits

CPU = torch.device("cpu")


@pytest.mark.parametrize(("count", "size"), [(10, 1), (11, 2), (7, 3), (2, 4)])
def test_every_example_is_evaluated_once(count: int, size: int) -> None:
    seen = [key.index for rank in range(size) for batch in EvalSampler(count, 3, World(rank, size, CPU)) for key in batch]
    assert sorted(seen) == list(range(count))


def test_training_order() -> None:
    def indices(epoch: int, rank: int, size: int, batch: int, start: int = 0) -> list[list[int]]:
        order = TrainSampler(20, batch, seed=1, world=World(rank, size, CPU))
        order.begin(epoch, start)
        return [[key.index for key in keys] for keys in order]

    whole = indices(0, 0, 1, 6)
    assert len(whole) == 3
    assert whole != indices(1, 0, 1, 6)
    assert whole[1:] == indices(0, 0, 1, 6, start=1)
    halves = [indices(0, rank, 2, 3) for rank in (0, 1)]
    assert [a + b for a, b in zip(*halves, strict=True)] == whole


@pytest.mark.parametrize("size", [1, 2])
def test_epochs_of_a_given_length(size: int) -> None:
    """Seven examples in batches of four: independent of epochs, every seven positions hold every example once."""

    def keys(epoch: int, start: int = 0) -> list[SampleKey]:
        orders = [TrainSampler(7, 4 // size, 1, World(rank, size, CPU), epochs=3, epoch_steps=5) for rank in range(size)]
        for order in orders:
            order.begin(epoch, start)
        return [key for parts in zip(*orders, strict=True) for part in parts for key in part]

    row = [key for epoch in range(3) for key in keys(epoch)]
    assert len(row) == 60
    for first in range(0, 56, 7):
        assert sorted(key.index for key in row[first : first + 7]) == list(range(7))
    assert len({key.seed for key in row}) == 60
    assert keys(1, start=2) == keys(1)[8:]


def test_mixed_seeds_are_distinct() -> None:
    seeds = {mix_seeds(a, b, c) for a in range(3) for b in range(30) for c in range(300)}
    assert len(seeds) >= 27_000 - 2  # 2**32 seeds: 0.1 collisions expected
    assert mix_seeds(0, 1) != mix_seeds(1, 0)
    assert mix_seeds(1) != mix_seeds(1, 0)
    bits = np.unpackbits(np.array([mix_seeds(0, i) for i in range(4000)], dtype=np.uint32).view(np.uint8)).reshape(4000, 32)
    assert np.abs(bits.mean(0) - 0.5).max() < 0.04  # five standard deviations


def test_seeding_is_local() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = torch.rand(1)
    with seeded(5):
        inside = torch.rand(1)
    torch.testing.assert_close(torch.cat([first, torch.rand(1)]), expected)
    with seeded(5):
        assert torch.equal(torch.rand(1), inside)


def test_accuracy_against_a_direct_computation() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 8), torch.randint(0, 8, (50,))
    places = torch.randperm(50)  # of the examples in the dataset
    parts = zip(logits.split(7), labels.split(7), places.split(7), strict=True)
    batches = [Batch(x, y, seeds=at.tolist()) for x, y, at in parts]
    result = evaluate_classifier(lambda x: x, batches, 8, CPU)
    order = logits.argsort(1, descending=True)
    assert result.top1 == pytest.approx(100 * (order[:, 0] == labels).double().mean().item())
    assert result.top5 == pytest.approx(100 * (order[:, :5] == labels[:, None]).any(1).double().mean().item())
    assert result.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    assert result.confusion.sum() == 50
    assert result.confusion[2, 3] == ((labels == 2) & (order[:, 0] == 3)).sum()
    assert torch.equal(result.answers, torch.stack([labels, order[:, 0], places], dim=1))
    torch.testing.assert_close(result.confidence, logits.softmax(1).max(1).values)
    few = evaluate_classifier(lambda x: x, [Batch(torch.eye(3), torch.tensor([0, 1, 1]), seeds=[0, 1, 2])], 3, CPU)
    assert few.top1 == pytest.approx(200 / 3)
    assert few.top5 == 100.0


def test_batch_augmentation_matches_pillow_and_depends_on_the_seed_only() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    factors = torch.tensor([[0.7, 1.3, 1.0], [1.2, 0.6, 1.0], [0.5, 1.4, 1.0]])
    ours = jitter_colors(images.float(), factors[..., None, None, None])
    for image, result, (brightness, contrast, saturation) in zip(pixels, ours, factors.T.tolist(), strict=True):
        expected = ImageEnhance.Brightness(Image.fromarray(image)).enhance(brightness)
        expected = ImageEnhance.Color(ImageEnhance.Contrast(expected).enhance(contrast)).enhance(saturation)
        difference = result.permute(1, 2, 0).numpy() - np.asarray(expected, dtype=np.float32)
        assert np.abs(difference).max() < 4  # Pillow rounds after each of the three

    finish = BatchAugment(AugmentConfig(auto_augment=None, erase=0.5), 3, CPU)
    whole = finish(images, [5, 6, 7])
    torch.testing.assert_close(torch.cat([finish(images[i : i + 1], [5 + i]) for i in range(3)]), whole)
    assert not torch.equal(finish(images, [8, 9, 10]), whole)


class Counted(Digits):
    """Digits that count their reads; one of them cannot be read."""

    def __init__(self) -> None:
        super().__init__("validation")
        self.reads = 0

    def read(self, index: int) -> Image.Image:
        self.reads += 1
        if index == 5:
            raise OSError("no such digit")
        return super().read(index)


@pytest.mark.parametrize(("cache_gb", "again"), [(1.0, 1), (0.0, 12), (2e-5, 12)])
def test_images_are_cached_if_all_fit(cache_gb: float, again: int) -> None:
    config = AugmentConfig(auto_augment=None)
    source, plain = Counted(), ImageDataset(Counted(), train_transforms(DataConfig(size_px=32), config), "RGB")
    kept = ImageDataset(source, plain.transforms, "RGB", cache_gb=cache_gb)
    for seed in (1, 2):  # another crop of the same image
        for index in range(12):
            for ours, theirs in zip(kept[SampleKey(index, seed)], plain[SampleKey(index, seed)], strict=True):
                assert ours == theirs if isinstance(ours, Broken) else torch.equal(ours[0], theirs[0])
    assert source.reads == 12 + again  # a broken image is tried each time


def test_cache_is_disabled_early_if_the_dataset_does_not_fit() -> None:
    kept = ImageDataset(Digits("validation"), [lambda image: image.size], "RGB", cache_gb=2e-3)  # 3 MB are needed
    sizes = []
    for index in range(50):
        kept[SampleKey(index, 0)]
        sizes.append(len(kept.cache))
    assert max(sizes) == 31
    assert sizes[-1] == 0


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("flip", [0.0, 1.0])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "random"])
def test_random_resized_crop_matches_timm(mode: str, flip: float, interpolation: str) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (45, 70, 4), dtype=np.uint8)).convert(mode)
    how = dict(scale=(0.2, 0.9), ratio=(0.5, 1.5), interpolation=interpolation)
    theirs = create_transform(32, is_training=True, hflip=flip, color_jitter=None, normalize=False, **how)
    ours = RandomResizedCrop(32, flip=flip, **how)
    results = []
    for seed in range(20):
        for transform in (ours, theirs):
            with seeded(seed):
                results.append(transform(image))
        assert torch.equal(*results[-2:])
        assert results[-2].is_contiguous()
    assert len({tuple(result.flatten().tolist()) for result in results}) == 20


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "rand-m5-n1", "original", "augmix-m5", "3a"])
@pytest.mark.parametrize("interpolation", ["bicubic", "random"])
def test_policy_after_the_crop_matches_timm(policy: str, interpolation: str) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize((70, 45))
    how = dict(scale=(0.2, 0.9), ratio=(0.5, 1.5), interpolation=interpolation)
    theirs = create_transform(32, is_training=True, hflip=0.0, color_jitter=None, auto_augment=policy, normalize=False, **how)
    crop, augmented, to_tensor = theirs.transforms
    (ours,) = train_transforms(DataConfig(size_px=32), AugmentConfig(auto_augment=policy, flip=0.0, **how))
    changed = 0
    for seed in range(40):
        with seeded(seed):
            result = ours(image)
        with seeded(seed):
            cut = crop(image)
            random.random()  # for the flip, which timm draws from another generator
            assert torch.equal(result, to_tensor(augmented(cut)))
        changed += not torch.equal(result, to_tensor(cut))
    assert changed > 10


def test_erasing_on_gpu_matches_cpu() -> None:
    finish, seeds = BatchAugment(AugmentConfig(auto_augment=None, erase=0.5), 3, CPU), [mix_seeds(0, 0, i) for i in range(20)]
    images = torch.randn(20, 3, 32, 32)
    here, there = images.clone(), finish._erase_on_gpu(images, range(0, 20, 3), seeds)
    finish._erase(here[::3], seeds[::3])
    assert torch.equal(here, there)
    assert not torch.equal(here, images)


def test_crop_colour_and_erasing_are_independent() -> None:
    config = AugmentConfig(auto_augment=None, erase=0.5)
    finish = BatchAugment(config, 3, CPU)
    (transform,) = train_transforms(DataConfig(size_px=32), config)
    areas, seeds = [], [mix_seeds(0, 0, i) for i in range(300)]
    for seed in seeds:
        with seeded(seed):
            left, upper, right, lower = transform.part(Image.new("RGB", (64, 64)))
        areas.append((right - left) * (lower - upper))
    brightness = finish._factors(seeds, CPU)[0].flatten()
    gray = torch.full((300, 3, 32, 32), 128, dtype=torch.uint8)
    finished = finish(gray, seeds)
    erased = (finished != finished[:, :, :1, :1]).flatten(1).any(1).float()
    together = torch.corrcoef(torch.stack([torch.tensor(areas).float(), brightness, erased]))
    assert (together - torch.eye(3)).abs().max() < 0.2  # 300 images: 0.06 is one standard error
    assert 0.35 < erased.mean() < 0.65


def test_broken_file_stops_evaluation_or_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    broken = Broken("b.png", "is cut off")
    whole, spoilt = (Batch(torch.eye(3), torch.arange(3), unread, [0, 1, 2]) for unread in ([], [broken]))
    seen = []

    def model(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return images

    with pytest.raises(ValueError, match=r"b\.png: is cut off; fix or remove it"):
        evaluate_classifier(model, [whole, spoilt, whole], 3, CPU, record=BrokenFiles("stop").record)
    assert seen == [3]

    damage = BrokenFiles("skip")
    result = evaluate_classifier(model, [whole, spoilt, spoilt], 3, CPU, record=damage.record)
    assert (damage, result.broken) == ({"b.png": "is cut off"}, (broken, broken))
    assert capsys.readouterr().err == "skipped b.png: is cut off\n"
    BrokenFiles("skip", is_main=False).record([broken], shared=True)
    assert capsys.readouterr().err == ""


class Strips:
    """Strips of one pixel, and one just long enough to be cropped."""

    classes, labels = ("strip",), np.zeros(3, int)

    def read(self, index: int) -> Image.Image:
        pixels = np.random.default_rng(0).integers(0, 256, (8, 8 * 70, 3), dtype=np.uint8)
        return (Image.new("RGB", (1, 5000)), Image.new("RGB", (5000, 1)), Image.fromarray(pixels))[index]

    def name(self, index: int) -> str:
        return f"strip {index}"


def test_long_strips_are_evaluated_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    resize, sides = Image.Image.resize, []

    def watched(image: Image.Image, size: tuple[int, int], *args: Any, **settings: Any) -> Image.Image:
        sides.append(max(size))
        return resize(image, size, *args, **settings)

    monkeypatch.setattr(Image.Image, "resize", watched)
    transform = eval_transform(DataConfig(size_px=32, resize_px=32), AugmentConfig())
    pil_images = ImageDataset(Strips(), [transform], "RGB")
    seen = [pil_images[SampleKey(index, index)][0] for index in range(3)]
    images = [item[0] for item in seen if not isinstance(item, Broken)]
    assert [image.shape for image in images] == [(3, 32, 32)] * 3
    assert sides == [64 * 32] * 3
    torch.testing.assert_close(images[2], Compose(transform.transforms[1:])(Strips().read(2)))  # as in the whole
