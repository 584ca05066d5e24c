"""The problems of the suite: what they ask, and that far pixels decide the answer."""

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage import data as photographs

from tailprop.tasks.reach.lines import END, START, draw_lines
from tailprop.tasks.reach.photos import crop_photo
from tailprop.tasks.reach.problems import IGNORED, PALETTE, PROBLEMS, Example, Problem, create_problem

SIZES = {"seeds": 32, "key": 48, "keys": 64, "path": 64, "color": 64, "fill": 64, "blocks": 64}


def example(name: str, seed: int = 0) -> tuple[Problem, Example]:
    problem = create_problem(name, 0.03, 32)
    photo = crop_photo(Image.fromarray(photographs.astronaut()), SIZES[name], None) if problem.uses_photos else None
    return problem, problem.make(np.random.default_rng(seed), SIZES[name], photo)


def perfect(problem: Problem, posed: Example) -> np.ndarray:
    if problem.kind == "values":
        return posed.target
    return np.eye(problem.outputs)[np.maximum(posed.target, 0)]


@pytest.mark.parametrize("name", PROBLEMS)
def test_examples_fit_the_interface(name: str) -> None:
    problem, posed = example(name)
    side = SIZES[name]
    assert posed.picture.shape == (side, side, 3)
    assert posed.picture.dtype == np.uint8
    encoded = problem.encode(posed.picture)
    assert encoded.shape == (side, side, problem.inputs)
    assert encoded.dtype == np.float32
    assert problem.draw(posed.picture, perfect(problem, posed)).shape == posed.picture.shape


@pytest.mark.parametrize("name", PROBLEMS)
def test_examples_are_a_function_of_the_seed(name: str) -> None:
    same, other = example(name)[1], example(name, seed=1)[1]
    np.testing.assert_array_equal(example(name)[1].picture, same.picture)
    assert not np.array_equal(same.picture, other.picture)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_perfect_output_has_the_best_score(name: str) -> None:
    problem, posed = example(name)
    best = problem.score(posed, perfect(problem, posed))
    assert best == 100  # per cent, or the upper limit of PSNR
    wrong = perfect(problem, posed)[..., ::-1] if problem.kind != "values" else posed.target + 0.1
    assert problem.score(posed, wrong) < best


def test_seeds_agree_with_the_distance_transform() -> None:
    _, posed = example("seeds")
    seeded = posed.picture.any(-1)
    rows, columns = ndimage.distance_transform_edt(~seeded, return_distances=False, return_indices=True)
    colours = (posed.picture[rows, columns][..., None, :] == PALETTE).all(-1).argmax(-1)
    distance = ndimage.distance_transform_edt(~seeded)
    grid = np.indices(seeded.shape)
    nearest = [np.hypot(*(grid - np.array(p)[:, None, None])) for p in np.argwhere(seeded)]
    unique = (np.abs(np.array(nearest) - distance) < 1e-9).sum(0) == 1  # ties may go either way
    np.testing.assert_array_equal(colours[unique], posed.target[unique])


def test_the_key_decides_every_label_and_is_far() -> None:
    for seed in range(20):
        _, posed = example("key", seed)
        is_key = posed.picture.any(-1) & ~(posed.picture == 255).all(-1)
        colour = int((posed.picture[is_key][0] == PALETTE).all(-1).argmax())
        labelled = posed.target != IGNORED
        assert set(np.unique(posed.target[labelled])) <= {colour, (colour + 2) % 4}
        gap = ndimage.distance_transform_edt(~is_key)[labelled].min()
        assert gap > 6


def test_the_nearer_of_two_keys_decides() -> None:
    sides = set()
    for seed in range(20):
        _, posed = example("keys", seed)
        is_key = posed.picture.any(-1) & ~(posed.picture == 255).all(-1)
        parts, count = ndimage.label(is_key)
        assert count == 2
        distance = np.stack([ndimage.distance_transform_edt(parts != part) for part in (1, 2)])
        colours = np.array([(posed.picture[parts == part][0] == PALETTE).all(-1).argmax() for part in (1, 2)])
        assert colours[0] != colours[1]
        labelled = posed.target != IGNORED
        nearest = distance.argmin(0)[labelled]
        np.testing.assert_array_equal((posed.target[labelled] - colours[nearest]) % 2, 0)  # its colour, or the opposite one
        assert distance[:, labelled].min() > 6
        sides |= set(nearest)
    assert sides == {0, 1}


def test_path_marks_are_joined_by_one_line_or_not() -> None:
    rng = np.random.default_rng(0)
    for joined in (True, False) * 5:
        picture, labels = draw_lines(rng, 64, joined)
        parts, _ = ndimage.label(ndimage.binary_dilation(picture > 0), np.ones((3, 3)))  # bridges gaps, not margins
        start, end = (np.unique(parts[picture == value]) for value in (START, END))
        assert len(start) == len(end) == 1
        assert (start == end).all() == joined
        assert set(np.unique(labels[picture == END])) == {int(joined)}
        np.testing.assert_array_equal(labels[parts == start][labels[parts == start] >= 0], 1)


def test_path_is_scored_at_the_end_mark() -> None:
    problem, posed = example("path")
    output = perfect(problem, posed)
    asked = posed.picture[..., 0] == END
    output[~asked] = output[~asked][:, ::-1]
    assert problem.score(posed, output) == 100
    output[asked] = output[asked][:, ::-1]
    assert problem.score(posed, output) == 0


def test_path_has_no_shortcut_in_the_number_of_bright_pixels() -> None:
    rng = np.random.default_rng(0)
    lit = {joined: [float((draw_lines(rng, 64, joined)[0] > 0).mean()) for _ in range(100)] for joined in (True, False)}
    joined, apart = np.array(lit[True]), np.array(lit[False])
    error = np.hypot(joined.std(), apart.std()) / 10
    assert abs(joined.mean() - apart.mean()) < 3 * error


def test_color_keeps_the_luma_and_a_share_of_hints() -> None:
    problem, posed = example("color")
    encoded = problem.encode(posed.picture)
    assert 0 < encoded[..., 3].mean() <= 0.0301
    np.testing.assert_array_equal(encoded[encoded[..., 3] == 0][:, 1:3], 0)
    photo = crop_photo(Image.fromarray(photographs.astronaut()), 64, None)
    drawn = problem.draw(posed.picture, posed.target)
    assert np.abs(drawn.astype(int) - photo).max() <= 3  # rounding of the gray picture


@pytest.mark.parametrize(("name", "missing"), [("fill", 0.97), ("blocks", 0.25)])
def test_filled_pictures_keep_the_known_pixels(name: str, missing: float) -> None:
    problem, posed = example(name)
    known = problem.encode(posed.picture)[..., 3] == 1
    assert 1 - known.mean() == pytest.approx(missing, abs=0.001)
    drawn = problem.draw(posed.picture, np.zeros_like(posed.target))
    np.testing.assert_array_equal(drawn[known], posed.picture[known])
    np.testing.assert_array_equal(drawn[~known], 0)
