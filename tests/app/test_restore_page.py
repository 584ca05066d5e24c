"""The Restore page, and the numbers behind it."""

import io
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tailprop.app.library import Library, Loaded
from tailprop.app.restoring import Damage, restore
from tailprop.app.store import Photo, Photographs
from tailprop.app.work import CancelledError, Job
from tests.app.conftest import Watched


@pytest.fixture(scope="module")
def loaded(app_runs: Path) -> Loaded:
    library = Library((), app_runs)
    return library.load(next(entry.key for entry in library.entries() if entry.name == "sub/restorer"))


def small(size: tuple[int, int] = (96, 64), mode: str = "RGB") -> Photo:
    return Photo("photo.jpg", Photographs().get("coffee").image.resize(size).convert(mode))


def test_noise_is_added_and_measured(loaded: Loaded) -> None:
    found = restore(loaded, small(), Damage("noise", sigma=25), Job("job"))
    summary = found.summary()
    assert (summary["width"], summary["height"]) == (96, 64)
    assert summary["psnr_before"] == pytest.approx(20.17 + 0.5, abs=0.6)  # 20 log10(255 / 25), and clipping helps a little
    assert summary["psnr_after"] > 0
    after = np.asarray(Image.open(io.BytesIO(found.png("after"))))
    expected = loaded.predictor.predict(found.before)
    np.testing.assert_array_equal(after, expected)
    with pytest.raises(ValueError, match="no such image"):
        found.png("other")


def test_own_photo_keeps_channels_and_is_not_measured(loaded: Loaded) -> None:
    found = restore(loaded, small(mode="RGBA"), Damage("none"), Job("job"))
    assert found.after.shape == (64, 96, 4)
    assert "psnr_before" not in found.summary()
    assert restore(loaded, small(mode="L"), Damage("jpeg", quality=10), Job("job")).after.shape == (64, 96, 1)


def test_large_photo_is_restored_in_tiles_and_can_be_cancelled(loaded: Loaded) -> None:
    job = Job("job")
    restore(loaded, small((700, 200)), Damage("none"), job)
    assert job.share == pytest.approx(1)
    assert job.version >= 7  # two tiles of each channel
    stopped = Job("job")
    threading.Timer(0.05, lambda: setattr(stopped, "stop", True)).start()
    begun = time.monotonic()
    with pytest.raises(CancelledError):
        restore(loaded, small((4000, 3000)), Damage("none"), stopped)
    assert time.monotonic() - begun < 20
    assert not loaded.lock.locked()
    with loaded.in_use(), pytest.raises(ValueError, match="busy with another job"), loaded.in_use(0.01):
        pass


def test_what_cannot_be_restored_is_said(loaded: Loaded) -> None:
    with pytest.raises(ValueError, match="does not enlarge"):
        restore(loaded, small(), Damage("downscale"), Job("job"))
    with pytest.raises(ValueError, match="has 25 megapixels, and the page restores up to 24"):
        restore(loaded, Photo("big.png", Image.new("L", (5000, 5000))), Damage("none"), Job("job"))
    with pytest.raises(ValueError, match="damage must be one of"):
        Damage.parse({"damage": "fire"})


def test_page_restores_and_offers_the_result(watched: Watched) -> None:
    page = watched.open("#restore")
    page.get_by_text("Trained on noise").wait_for()
    buffer = io.BytesIO()
    small().image.save(buffer, "PNG")
    watched.give("my photo.png", buffer.getvalue())
    page.get_by_text("my photo.png, 96 \u00d7 64 px").first.wait_for(state="attached")
    page.get_by_label("Noise \u03c3").fill("40")
    page.get_by_role("button", name="Restore", exact=True).click()
    watched.until("() => document.querySelector('#page-restore').dataset.done === '1'")
    page.get_by_text("PSNR after").wait_for()
    watched.until(
        "() => [...document.querySelectorAll('#restore-compare img')].every(i => i.complete && i.naturalWidth === 96)"
    )
    shown = page.locator("#restore-compare").screenshot()
    slider = page.get_by_label("Before and after")
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_timeout(100)
    assert page.locator("#restore-compare").screenshot() != shown
    with page.expect_download() as download:
        page.get_by_role("link", name="Download PNG").click()
    assert download.value.suggested_filename == "my photo_restored.png"
    with Image.open(download.value.path()) as image:
        assert image.size == (96, 64)


def test_page_cancels_a_large_photo(watched: Watched) -> None:
    page = watched.open("#restore")
    page.get_by_text("Trained on noise").wait_for()
    buffer = io.BytesIO()
    small().image.resize((3000, 2000)).save(buffer, "JPEG")
    watched.give("large.jpg", buffer.getvalue())
    page.get_by_text("large.jpg, 3000 \u00d7 2000 px").first.wait_for(state="attached")
    page.get_by_label("As it is").check()
    page.get_by_role("button", name="Restore", exact=True).click()
    watched.until("() => document.querySelector('#restore-progress').value > 0.005")
    page.get_by_role("button", name="Cancel").click()
    watched.until("() => document.querySelector('#restore-status').textContent === 'cancelled'")
