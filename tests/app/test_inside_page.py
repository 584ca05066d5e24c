"""The page Inside a model, and the numbers behind it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tailprop.app.inside import compare, field_at, inspect
from tailprop.app.library import Library, Loaded
from tailprop.app.store import Photo, Photographs
from tests.app.conftest import Watched

DRAWN = "#page-inside[data-drawn][data-fields]"


@pytest.fixture(scope="module")
def loaded(app_runs: Path) -> Loaded:
    library = Library((), app_runs)
    return library.load(next(entry.key for entry in library.entries() if entry.name == "fast"))


@pytest.fixture
def photo() -> Photo:
    return Photographs().get("astronaut")


def test_prediction_is_that_of_the_command_line(loaded: Loaded, photo: Photo) -> None:
    numbers, images = inspect(loaded, photo)
    expected = loaded.predictor.predict(photo.rgb).top(5)
    assert numbers["answer"]["classes"] == [{"name": one.name, "probability": one.probability} for one in expected]
    assert images["shown"].shape == (32, 32, 3)
    assert [(one["stage"], one["layer"]) for one in numbers["layers"]] == [(1, 1), (2, 1)]
    for layer in numbers["layers"]:
        assert 0 < layer["gate"] < 1
        assert layer["response"][0] == pytest.approx(1, abs=1e-4)  # the mean passes
        assert layer["response"][-1] < 1


def test_gate_of_an_image_is_its_value_in_the_set(loaded: Loaded, photo: Photo, tmp_path: Path) -> None:
    photo.rgb.save(tmp_path / "one.png")
    (tmp_path / "broken.png").write_bytes(b"not an image")
    shares: list[float] = []
    found = compare(loaded, tmp_path, shares.append)
    assert found["images"] == 1
    assert sum(shares) == pytest.approx(1)
    layers = inspect(loaded, photo)[0]["layers"]
    assert {f"{one['stage']}.{one['layer']}": [pytest.approx(one["gate"], abs=1e-4)] for one in layers} == found["values"]
    everything = compare(loaded, None)
    assert everything["images"] == 30
    assert all(len(values) == 30 and values == sorted(values) for values in everything["values"].values())


def test_receptive_field_is_where_the_point_is(loaded: Loaded, photo: Photo) -> None:
    centres = []
    for place in ((0.1, 0.1), (0.9, 0.6)):
        numbers, images = field_at(loaded, photo, place)
        light = images["field"].astype(float).sum(-1)
        rows, columns = np.indices(light.shape)
        centres.append(
            ((light * columns).sum() / light.sum() / light.shape[1], (light * rows).sum() / light.sum() / light.shape[0])
        )
        x, y, w, h = numbers["cell"]
        assert x <= place[0] <= x + w
        assert y <= place[1] <= y + h
        assert 0 < numbers["half"] < numbers["most"] <= 100
    assert centres[0][0] < 0.5 < centres[1][0]
    assert centres[0][1] < centres[1][1]


def test_library_finds_runs_and_refuses_the_rest(app_runs: Path, tmp_path: Path) -> None:
    library = Library((str(app_runs / "slow"),), app_runs)
    names = {entry.name for entry in library.entries() if not entry.is_shipped}
    assert names == {str(app_runs / "slow"), "fast", "sub/restorer"}  # each once
    assert [entry.path.name for entry in Library((str(app_runs / "*s*"),), tmp_path).named] == ["fast", "slow"]  # no run: sub
    with pytest.raises(ValueError, match="no run folder or weights file at nothing"):
        Library(("nothing",), app_runs)
    with pytest.raises(ValueError, match="no run matches"):
        Library(("nothing*",), app_runs)
    with pytest.raises(ValueError, match="is neither a run folder"):
        Library((str(tmp_path),), app_runs)
    with pytest.raises(ValueError, match="no longer there"):
        library.load("/etc/passwd")


def test_model_is_loaded_again_when_its_weights_change(app_runs: Path) -> None:
    import os

    library = Library((), app_runs)
    key = next(entry.key for entry in library.entries() if entry.name == "slow")
    first = library.load(key)
    assert library.load(key) is first
    os.utime(app_runs / "slow" / "model.safetensors", ns=(1, 1))
    assert library.load(key) is not first


def test_page_shows_a_model(watched: Watched) -> None:
    page = watched.open("#inside", DRAWN)
    page.locator("#inside-model").select_option(label="fast (classify)")
    watched.until("() => Number(document.querySelector('#page-inside').dataset.fields) > 1")
    assert page.locator("#inside-classes li").count() == 5
    assert page.locator("#chart-gates path").count() == 2
    before = watched.pixels("#inside-field")
    page.locator("#inside-image").focus()
    for _ in range(6):
        page.keyboard.press("Shift+ArrowRight")
    watched.until("() => document.querySelector('#inside-image').getAttribute('aria-label').includes('100 percent across')")
    watched.until_changed("#inside-field", before)
    image = watched.pixels("#inside-image")
    pixels = torch.randint(0, 255, (40, 40, 3), dtype=torch.uint8).numpy()
    import io

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    watched.give("noise.png", buffer.getvalue())
    page.get_by_text("noise.png", exact=False).first.wait_for(state="attached")
    watched.until_changed("#inside-image", image)
    page.get_by_role("button", name="Compare over the set").click()
    watched.until("() => document.querySelector('#page-inside').dataset.compared")
    assert page.locator("#chart-gates circle").count() == 60
    page.locator("#inside-model").select_option(label="sub/restorer (restore)")
    page.locator("#inside-answer").wait_for()
    assert len(set(watched.pixels("#inside-answer"))) > 3
