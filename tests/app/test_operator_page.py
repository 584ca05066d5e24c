"""The Operator page in a browser: what is dropped, dragged and pressed changes the pictures."""

import io
import time

import numpy as np
import pytest
from PIL import Image

from tests.app.conftest import Watched

DRAWN = "#page-operator[data-drawn]"
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n%%EOF\n"


def png(width: int, height: int) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (min(height, 64), min(width, 64), 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()


def wait_drawn(watched: Watched, before: int) -> None:
    watched.until("n => Number(document.querySelector('#page-operator').dataset.drawn) > n", before)


def drawn(watched: Watched) -> int:
    return int(watched.page.evaluate("document.querySelector('#page-operator').dataset.drawn || 0"))


def test_slider_and_drop_change_the_pictures(watched: Watched) -> None:
    page = watched.open("#operator", DRAWN)
    views = ["tailprop", "gaussian", "cauchy", "heat", "wave", "spectrum_out"]
    first = {view: watched.pixels(f"[data-view={view}]") for view in ["input", *views]}
    assert len({str(values) for values in first.values()}) == len(first)  # no two are the same
    before = drawn(watched)
    slider = page.get_by_label("Gate λ")
    slider.focus()
    page.keyboard.press("End")
    wait_drawn(watched, before)
    watched.until("() => document.querySelector('[name=lam]').getAttribute('aria-valuetext') === '1.00'")
    watched.until_changed("[data-view=tailprop]", first["tailprop"])
    end = time.monotonic() + 15
    while watched.pixels("[data-view=tailprop]") != first["gaussian"]:  # lambda = 1 is the Gaussian
        assert time.monotonic() < end
        page.wait_for_timeout(20)
    assert watched.pixels("[data-view=gaussian]") == first["gaussian"]
    before = drawn(watched)
    watched.give("noise.png", png(64, 64))
    wait_drawn(watched, before)
    page.get_by_text("noise.png, 64 \u00d7 64 px").first.wait_for()
    assert watched.pixels("[data-view=input]") != first["input"]
    assert watched.pixels("[data-view=tailprop]") != first["tailprop"]


def test_impulses_by_mouse_and_keyboard(watched: Watched) -> None:
    page = watched.open("#operator", DRAWN)
    before = drawn(watched)
    page.get_by_label("Impulses").check()
    wait_drawn(watched, before)
    page.wait_for_timeout(200)
    canvas = page.locator("#operator-input")
    shown = watched.pixels("[data-view=cauchy]")
    canvas.click(position={"x": 60, "y": 200})
    watched.until("() => document.querySelector('#operator-input').getAttribute('aria-label').includes('impulse 3 of 3')")
    clicked = watched.until_changed("[data-view=cauchy]", shown)
    label = canvas.get_attribute("aria-label")
    canvas.focus()
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    watched.until_changed("[data-view=cauchy]", clicked)
    assert canvas.get_attribute("aria-label") != label
    page.keyboard.press("Delete")
    assert "of 2" in str(canvas.get_attribute("aria-label"))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("notes.txt", b"not an image at all", "notes.txt is not an image"),
        ("picture.png", EPS, "picture.png is not an image"),
        ("wide.png", png(20_000, 2), "wide.png is 20000 x 2 px; the page takes up to 12000 px a side"),
        ("cut.png", png(64, 64)[:200], "cut.png cannot be read"),
        ("<img src=x onerror=alert(1)>.png", b"<svg>", "<img src=x onerror=alert(1)>.png is not an image"),
    ],
)
def test_hostile_file_gets_a_message(watched: Watched, name: str, data: bytes, message: str) -> None:
    page = watched.open("#operator")
    watched.expected = ["400 (Bad Request)"]
    watched.give(name, data)
    page.get_by_role("alert").get_by_text(message).wait_for()
    assert page.locator("img[src=x]").count() == 0
    page.get_by_label("Close this message").click()
    assert not page.locator("#alert").is_visible()
