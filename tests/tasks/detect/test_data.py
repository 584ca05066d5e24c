"""Valid and invalid COCO files, transforms of images with boxes and masks, and the order of training."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.transforms import v2

from tailprop.data.broken import Broken
from tailprop.data.formats.coco import decode_counts, decode_masks, encode_mask, read_coco
from tailprop.data.packing import Packed
from tailprop.data.samplers import SampleKey
from tailprop.data.shapes.render import SceneConfig
from tailprop.data.shapes.write import write_coco
from tailprop.runtime.distributed import World
from tailprop.tasks.detect.config import DetectAugmentConfig
from tailprop.tasks.detect.data import AspectRatioSampler, Augment, DetectionDataset, Target, collate, cut, mirror, resize
from tailprop.tasks.detect.model import Sizes

CPU = torch.device("cpu")
SQUARE = [[10.0, 10, 30, 10, 30, 30, 10, 30]]


def annotation(number: int, **changes: Any) -> dict[str, Any]:
    sound = dict(id=number, image_id=1, category_id=18, bbox=[10, 10, 20, 20], segmentation=SQUARE, area=400, iscrowd=0)
    return sound | changes


def write_set(root: Path, annotations: list[dict[str, Any]], **content: Any) -> Path:
    """Two images of 60x40, one of them missing on disk, and categories with gaps in their ids."""
    (root / "images").mkdir(exist_ok=True)
    Image.new("RGB", (60, 40), "gray").save(root / "images" / "a.jpg")
    images = [dict(id=1, file_name="a.jpg", width=60, height=40), dict(id=2, file_name="b.jpg", width=60, height=40)]
    categories = [dict(id=90, name="toothbrush"), dict(id=18, name="dog"), dict(id=3, name="car")]
    path = root / "some.json"
    path.write_text(json.dumps(dict(images=images, annotations=annotations, categories=categories) | content))
    return path


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (dict(segmentation=[[1.0, 2, 3, 4, 5]]), "its polygon is invalid: [1.0, 2, 3, 4, 5]"),
        (dict(segmentation=[[1.0, 2, 3, 4]]), "its polygon is invalid"),
        (dict(segmentation=[[1.0, 2, 3, 4, 5, float("nan")]]), "its polygon is invalid"),
        (dict(segmentation=[["x"] * 6]), "its polygon is invalid"),
        (dict(segmentation=[]), "it has no polygon"),
        (dict(segmentation=None), "it has no segmentation"),
        (dict(segmentation=dict(size=[9, 9], counts=[81])), "its RLE has size [9, 9], the image is [40, 60]"),
        (dict(segmentation=dict(size=[40, 60], counts=[81])), "do not add up"),
        (dict(segmentation=dict(size=[40, 60], counts=[1e3, 1400])), "do not add up"),
        (dict(segmentation=dict(size=[40, 60], counts=[-100, 2500])), "do not add up"),
        (dict(segmentation=dict(size=[40, 60], counts="")), "do not add up"),
        (dict(segmentation=dict(size=[40, 60], counts="1")), "do not add up"),
        (dict(segmentation=dict(size=[40, 60], counts="zzzzzz")), "its RLE is corrupt: 'zzzzzz'"),
        (dict(segmentation=dict(size=[40, 60], counts="PP")), "its RLE is corrupt: 'PP'"),  # truncated
        (dict(segmentation=dict(size=[40, 60])), "its RLE has no counts"),
        (dict(segmentation=dict(size=[40.0, 60.0], counts=[2400])), "its RLE has size [40.0, 60.0]"),
        (dict(segmentation=[[0.0, 0, 3e8, 0, 3e8, 3e8]]), "its polygon is invalid"),
        (dict(segmentation=[[0.0, 0, 1e12, 5, 0, 9]]), "its polygon is invalid"),
        (dict(segmentation=[[0, 0, 10**400, 5, 0, 9]]), "its polygon is invalid"),
        (dict(category_id="seven"), "its category 'seven' is not among"),
        (dict(category_id=None), "its category None is not among"),
        (dict(image_id=[0]), "its image [0] is not in the file"),
        (dict(iscrowd=None), "its iscrowd is None, not 0 or 1"),
        (dict(category_id=7), "its category 7 is not among the 3 categories of the file"),
        (dict(image_id=5), "its image 5 is not in the file"),
        (dict(bbox=[1, 2, 3]), "its box is [1, 2, 3], not x, y, width, height"),
    ],
)
def test_invalid_annotation_is_skipped_alone(damage: dict[str, Any], reason: str, tmp_path: Path) -> None:
    found = read_coco(write_set(tmp_path, [annotation(1), annotation(2, **damage)]), tmp_path / "images")
    broken = {item.name: item.reason for item in found.broken}
    assert reason in broken["some.json, annotation 2"]
    assert broken[str(tmp_path / "images" / "b.jpg")] == "the image is missing"
    assert len(broken) == 2
    assert [a["id"] for image in found.images for a in image.objects] == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"images": [', "is not valid json"),
        ("[]", "is not in COCO's format: it has no list of images, annotations, categories"),
        ('{"images": [], "annotations": [], "categories": []}', "has no categories"),
        ('{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}', "none of the images in"),
    ],
)
def test_invalid_annotation_file(text: str, message: str, tmp_path: Path) -> None:
    path = write_set(tmp_path, [])
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_coco(path, tmp_path / "images")


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        ([7], "category number 0: its id is None, not an integer"),
        ([dict(id="seven", name="a")], "category number 0: its id is 'seven', not an integer"),
        ([dict(id=None, name="a")], "category number 0: its id is None, not an integer"),
        ([dict(id=1, name=None)], "category 1: its name is None, not a single line of text"),
        ([dict(id=1, name="a\nb")], r"category 1: its name is 'a\\nb', not a single line of text"),
        ([dict(id=1, name="a"), dict(id=1, name="b")], "has two categories with the id 1"),
        ([dict(id=1, name="a"), dict(id=2, name="a")], "has two categories with the name 'a'"),
    ],
)
def test_invalid_categories(categories: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_coco(write_set(tmp_path, [], categories=categories), tmp_path / "images")


@pytest.mark.parametrize(
    ("entry", "named", "reason"),
    [
        ("b.jpg", "image number 1", "lacks id, file_name, width or height"),
        (dict(id=2, file_name=7, width=60, height=40), "7", "its file_name is 7, not text"),
        (dict(id=2, file_name="b.jpg", width="60", height=40), "b.jpg", "its size is invalid: '60'x40"),
        (dict(id=2, file_name="b.jpg", width=60, height=None), "b.jpg", "lacks id, file_name, width or height"),
        (dict(id=2, file_name="b.jpg", width=10**9, height=40), "b.jpg", "its size is invalid: 1000000000x40"),
        (dict(id="p0", file_name="b.jpg", width=60, height=40), "b.jpg", "its id is 'p0', not an integer"),
        (dict(id=1, file_name="b.jpg", width=60, height=40), "b.jpg", "its id 1 is also the id of a.jpg"),
    ],
)
def test_invalid_image_entry_is_reported_once(entry: Any, named: str, reason: str, tmp_path: Path) -> None:
    images = [dict(id=1, file_name="a.jpg", width=60, height=40), entry]
    found = read_coco(write_set(tmp_path, [annotation(1), annotation(2)], images=images), tmp_path / "images")
    (broken,) = found.broken
    assert broken.name == str(tmp_path / "images" / named)
    assert reason in broken.reason
    assert [image.id for image in found.images] == [1]
    assert len(found.images[0].objects) == 2


def test_annotations_of_an_invalid_image_entry_are_not_reported(tmp_path: Path) -> None:
    images = [dict(id=1, file_name="a.jpg", width=60, height=40), dict(id=2, file_name="b.jpg", width=0, height=40)]
    path = write_set(tmp_path, [annotation(1), annotation(2, image_id=2)], images=images)
    assert [item.reason for item in read_coco(path, tmp_path / "images").broken] == ["its size is invalid: 0x40"]


def test_an_annotation_that_is_a_list(tmp_path: Path) -> None:
    images = [dict(id=1, file_name="a.jpg", width=60, height=40)]
    broken: list[Any] = [[1, 2], annotation(1)]
    found = read_coco(write_set(tmp_path, broken, images=images), tmp_path / "images")
    assert [str(item) for item in found.broken] == ["some.json, annotation number 0: it is [1, 2], not an object with keys"]


def test_compressed_rle_matches_pycocotools() -> None:
    generator = np.random.default_rng(0)
    for density in (0.0, 0.01, 0.5, 0.99, 1.0):
        mask = generator.random((70, 90)) < density
        changes = np.flatnonzero(np.diff(mask.T.ravel())) + 1
        lengths = np.diff([0, *changes, mask.size]).tolist()
        assert decode_counts(encode_mask(mask)["counts"]) == ([0, *lengths] if mask[0, 0] else lengths)


def test_ground_truth_has_new_ids_and_areas(tmp_path: Path) -> None:
    crowd = annotation(5, iscrowd=1, segmentation=dict(size=[40, 60], counts=[2300, 100]), area=None)
    objects = [annotation(0), annotation(0, area=7), {k: v for k, v in annotation(5).items() if k != "area"}, crowd]
    found = read_coco(write_set(tmp_path, objects), tmp_path / "images").ground_truth()["annotations"]
    assert [a["id"] for a in found] == [1, 2, 3, 4]
    assert [a["area"] for a in found] == [400, 7, 400, 100]


def test_crowds_and_empty_boxes_are_used_in_evaluation_only(tmp_path: Path) -> None:
    crowd = annotation(2, iscrowd=1, segmentation=dict(size=[40, 60], counts=[40 * 60]))
    flat, outside = annotation(3, bbox=[10, 10, 20, 0]), annotation(4, bbox=[70, 10, 20, 20])
    found = read_coco(write_set(tmp_path, [annotation(1), crowd, flat, outside]), tmp_path / "images")
    assert [a["id"] for a in found.images[0].targets] == [1]
    assert [a["id"] for a in found.ground_truth()["annotations"]] == [1, 2, 3, 4]


def test_categories_become_labels_from_1(tmp_path: Path) -> None:
    objects = [annotation(1, category_id=90), annotation(2, category_id=3), annotation(3, category_id=18)]
    found = read_coco(write_set(tmp_path, objects), tmp_path / "images")
    assert found.classes == ("car", "dog", "toothbrush")
    images = DetectionDataset(found.images, found.category_ids, Augment(DetectAugmentConfig(short_px=(40,)), 1333))
    (example,) = images[SampleKey(0, 0)]
    assert not isinstance(example, Broken)
    assert example[1]["labels"].tolist() == [3, 1, 2]


def test_masks_of_polygons_and_rle_agree() -> None:
    polygon = decode_masks([annotation(1)], 60, 40)
    assert polygon.sum() == 400
    assert polygon[0, 10:30, 10:30].all()
    compressed = encode_mask(polygon[0])
    columns = polygon[0].T.ravel()  # RLE goes down the columns
    changes = np.flatnonzero(np.diff(columns)) + 1
    counts = np.diff([0, *changes, len(columns)]).tolist()
    for runs in (compressed, dict(size=[40, 60], counts=counts)):
        assert np.array_equal(decode_masks([annotation(1, segmentation=runs)], 60, 40), polygon)


def test_image_of_another_size_or_empty_file_is_broken(tmp_path: Path) -> None:
    path = write_set(tmp_path, [annotation(1)])
    Image.new("RGB", (50, 40)).save(tmp_path / "images" / "a.jpg")
    (tmp_path / "images" / "b.jpg").write_bytes(b"")
    found = read_coco(path, tmp_path / "images")
    batch = collate([DetectionDataset(found.images, found.category_ids)[SampleKey(i, i)] for i in range(2)])
    assert [item.reason for item in batch.broken] == ["it is 50x40, but its annotations are for 60x40", "not an image"]
    assert len(batch) == 0


def test_broken_image_is_replaced_in_training(tmp_path: Path) -> None:
    path = write_set(tmp_path, [annotation(1), annotation(2, image_id=2)])
    (tmp_path / "images" / "b.jpg").write_bytes(b"no image")
    found = read_coco(path, tmp_path / "images")
    images = DetectionDataset(found.images, found.category_ids, Augment(DetectAugmentConfig(short_px=(40,)), 1333))
    for seed in range(20):
        batch = collate([images[SampleKey(1, seed)]])
        assert batch.ids == [1]
        assert {str(item) for item in batch.broken} == {f"{tmp_path / 'images' / 'b.jpg'}: not an image"}


def test_exif_rotated_images_match_their_annotations(tmp_path: Path) -> None:
    path = write_set(tmp_path, [annotation(1)])
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    for size in ((40, 60), (60, 40)):  # annotated upright, annotated as stored
        Image.new("RGB", size).save(tmp_path / "images" / "a.jpg", exif=exif)
        found = read_coco(path, tmp_path / "images")
        (example,) = DetectionDataset(found.images, found.category_ids)[SampleKey(0, 0)]
        assert not isinstance(example, Broken)
        assert example[0].shape == (3, 40, 60)


def box_scene(h: int = 50, w: int = 70) -> tuple[Tensor, Target]:
    """Two rectangles whose boxes are their masks."""
    boxes = torch.tensor([[10.0, 5, 40, 30], [30, 20, 65, 45]])
    masks = torch.zeros(2, h, w, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist(), strict=True):
        mask[y1:y2, x1:x2] = 1
    return torch.randint(0, 256, (3, h, w), dtype=torch.uint8), dict(boxes=boxes, masks=masks, labels=torch.tensor([1, 2]))


def boxes_of(masks: Tensor) -> Tensor:
    corners = [(m.any(0).nonzero().flatten(), m.any(1).nonzero().flatten()) for m in masks]
    return torch.tensor([[x[0], y[0], x[-1] + 1, y[-1] + 1] for x, y in corners], dtype=torch.float32)


def test_flip_and_resize_match_torchvision() -> None:
    image, target = box_scene()
    wrapped = {
        "boxes": tv_tensors.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=(50, 70)),
        "masks": tv_tensors.Mask(target["masks"]),
    }
    theirs_image, theirs = v2.RandomHorizontalFlip(1.0)(tv_tensors.Image(image), wrapped)
    ours_image, ours = mirror(image, target)
    assert torch.equal(ours_image, theirs_image)
    assert torch.equal(ours["boxes"], theirs["boxes"])
    assert torch.equal(ours["masks"], theirs["masks"])
    _, theirs = v2.Resize((100, 140))(tv_tensors.Image(image), wrapped)
    _, ours = resize(image, target, 100, 1333)
    assert torch.equal(ours["boxes"], theirs["boxes"])
    assert torch.equal(ours["masks"], theirs["masks"])


@pytest.mark.parametrize("size", [(50, 70), (480, 640), (333, 500), (100, 900), (427, 640), (97, 97), (1, 200)])
def test_resize_is_the_same_in_training_and_evaluation(size: tuple[int, int]) -> None:
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    inside = Sizes(80, 133, [0.0] * 3, [1.0] * 3, size_divisible=1).eval()
    theirs = inside([image / 255])[0].tensors[0]
    empty = dict(boxes=torch.zeros(0, 4), masks=torch.zeros(0, *size, dtype=torch.uint8), labels=torch.zeros(0))
    ours, target = resize(image, empty, 80, 133)
    assert ours.shape == theirs.shape
    assert target["masks"].shape == (0, *theirs.shape[1:])
    assert (ours / 255 - theirs).abs().max() <= 0.5 / 255 + 1e-6
    assert min(ours.shape[1:]) == 80 or max(ours.shape[1:]) == 133  # to the pixel


def test_detector_resize_matches_torchvision() -> None:
    image = torch.rand(3, 48, 64)
    settings: dict[str, Any] = dict(image_mean=[0.4] * 3, image_std=[0.2] * 3)
    ours, theirs = (kind(96, 160, **settings).eval()([image])[0] for kind in (Sizes, GeneralizedRCNNTransform))
    assert ours.image_sizes == theirs.image_sizes == [(96, 128)]
    assert torch.equal(ours.tensors, theirs.tensors)


def test_crop_keeps_visible_objects() -> None:
    image, target = box_scene()
    part, seen = cut(image, target, top=10, left=35, height=30, width=30)
    assert torch.equal(part, image[:, 10:40, 35:65])
    assert torch.equal(seen["boxes"], torch.tensor([[0.0, 0, 5, 20], [0, 10, 30, 30]]))
    assert torch.equal(boxes_of(seen["masks"]), seen["boxes"])
    _, seen = cut(image, target, top=31, left=0, height=19, width=50)
    assert seen["labels"].tolist() == [2]  # the first is outside of the crop
    _, seen = cut(image, target, top=0, left=0, height=4, width=4)
    assert len(seen["boxes"]) == 0


def test_3x_augmentation_stays_within_its_bounds() -> None:
    config = DetectAugmentConfig(short_px=(48, 64, 80), crop_chance=0.5, crop_short_px=(40, 50, 60), crop_px=(38, 60), flip=0.5)
    random.seed(0)
    shorts, ratios = set(), set()
    for _ in range(60):
        image, target = Augment(config, 133)(*box_scene())
        h, w = image.shape[-2:]
        shorts.add(min(h, w))
        ratios.add(round(w / h, 2))
        assert max(h, w) <= 133
        assert target["masks"].shape[1:] == (h, w)
        if len(target["boxes"]):
            assert (boxes_of(target["masks"]) - target["boxes"]).abs().max() <= 2
    assert {48, 64, 80} <= shorts  # a very flat crop is smaller, because its long side reaches the bound
    assert len(ratios) > 10  # cropped, not only resized


def test_batches_are_wide_or_tall() -> None:
    wide = [i % 3 > 0 for i in range(100)]
    order = AspectRatioSampler(wide, 8, seed=1, world=World(0, 1, CPU))
    order.begin(epoch=2)
    batches = [[key.index for key in batch] for batch in order]
    assert len(batches) == order.steps == 12
    assert len({i for batch in batches for i in batch}) == 96  # each at most once
    assert sum(len({wide[i] for i in batch}) > 1 for batch in batches) <= 1
    assert batches == [[key.index for key in batch] for batch in order]
    order.begin(epoch=3)
    assert batches != [[key.index for key in batch] for batch in order]


def test_fewer_images_than_a_step_needs() -> None:
    with pytest.raises(ValueError, match="a step needs 6 images, but there are 5"):
        AspectRatioSampler([True] * 5, 3, 0, World(0, 1, CPU), accumulate=2, epoch_steps=4)


def test_packed_objects_round_trip() -> None:
    items = [[], [{"bbox": [1.5, 2], "name": "\u00e9"}], "text", None]
    packed = Packed(iter(items))
    assert [packed[i] for i in range(len(packed))] == items
    assert packed[1] is not packed[1]
    assert not packed.bytes.flags.writeable


@pytest.mark.parametrize("epoch_steps", [None, 5])
def test_order_is_the_same_for_any_number_of_processes_and_after_resuming(epoch_steps: int | None) -> None:
    wide = [i % 4 > 0 for i in range(61)]
    settings: dict[str, Any] = dict(accumulate=2, epochs=4, epoch_steps=epoch_steps)
    alone = AspectRatioSampler(wide, 6, 5, World(0, 1, CPU), **settings)
    pair = [AspectRatioSampler(wide, 3, 5, World(rank, 2, CPU), **settings) for rank in range(2)]
    four = [AspectRatioSampler(wide, 3, 5, World(rank, 4, CPU), epochs=4, epoch_steps=epoch_steps) for rank in range(4)]
    for epoch in range(4):
        for order in (alone, *pair, *four):
            order.begin(epoch)
        whole = list(alone)
        steps = [a + b for a, b in zip(whole[::2], whole[1::2], strict=True)]
        assert steps == [[key for part in parts for key in part] for parts in zip(*four, strict=True)]
        assert whole == [a + b for a, b in zip(*pair, strict=True)]
        assert len(whole) == 2 * alone.steps
        alone.begin(epoch, step=2)
        assert list(alone) == whole[4:]
        assert len(alone) == len(whole) - 4


def test_scenes_through_the_reader(tmp_path: Path) -> None:
    config = SceneConfig(size_px=64, crowd=0.0)
    write_coco(tmp_path, config, 4, 1)
    found = read_coco(tmp_path / "annotations" / "instances_train2017.json", tmp_path / "train2017")
    assert not found.broken
    images = DetectionDataset(found.images, found.category_ids, Augment(DetectAugmentConfig(short_px=(64,), flip=0.0), 64))
    for index in range(4):
        (example,) = images[SampleKey(index, 0)]
        assert not isinstance(example, Broken)
        assert torch.equal(boxes_of(example[1]["masks"]), example[1]["boxes"])
