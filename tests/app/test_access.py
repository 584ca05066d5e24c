"""For everybody: names of controls, contrast of text, keyboard, phones, dark and light, and no network."""

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.app.conftest import Watched

PAGES = {
    "operator": "#page-operator[data-drawn]",
    "inside": "#page-inside[data-drawn][data-fields]",
    "restore": "#page-restore",
    "run": "#page-run[data-drawn]",
}

CHECKS = (Path(__file__).parent / "access.js").read_text()
FOCUSED = "() => document.activeElement.id || document.activeElement.textContent.trim() || document.activeElement.tagName"


def wrong(page: Page, check: str) -> list[str]:
    found: list[str] = page.evaluate(f"() => {CHECKS.rstrip()}.{check}()")
    return found


@pytest.mark.parametrize("name", PAGES)
def test_controls_have_names_and_text_has_contrast(watched: Watched, name: str) -> None:
    page = watched.open(f"#{name}", PAGES[name])
    page.wait_for_timeout(100)
    assert wrong(page, "nameless") == []
    assert page.locator("h1:visible").count() == 1
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert wrong(page, "pale") == []
    light = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") != light
    assert wrong(page, "pale") == []
    page.reload()
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"  # it is remembered
    page.evaluate("() => localStorage.clear()")
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_selector(PAGES[name])
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
    assert page.evaluate("() => [...document.querySelectorAll('nav a')].every(a => a.getBoundingClientRect().height >= 24)")


def test_system_theme_is_followed(watched: Watched) -> None:
    page = watched.open("")
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") != dark


def test_keyboard_reaches_everything_in_order(watched: Watched) -> None:
    page = watched.open("#operator", PAGES["operator"])
    order = []
    for _ in range(14):
        page.keyboard.press("Tab")
        order.append(page.evaluate(FOCUSED))
    expected = ["Skip to the content", "TailProp", "Operator", "Inside a model", "Restore", "Run", "theme", "file-operator"]
    assert order[: len(expected)] == expected
    assert order[8] == "sample-operator"
    assert [one.split("-")[1] for one in order[10:14]] == ["lam", "k_gauss", "k_cauchy", "order"]
    page.get_by_role("link", name="Restore").press("Enter")
    watched.until("() => document.activeElement.id === 'title-restore'")  # the reader begins at the new page
    assert page.title().startswith("Restore")
    page.go_back()
    page.wait_for_selector("#page-operator", state="visible")


def test_values_of_a_chart_are_read_by_arrow_keys(watched: Watched) -> None:
    page = watched.open("#operator", PAGES["operator"])
    page.locator("#chart-response svg.lines").focus()
    page.keyboard.press("ArrowRight")
    text = page.locator("#chart-response .reading").text_content()
    assert text == "frequency, rad/px 0: TailProp 1, Gaussian 1, Cauchy 1, heat 1, wave 1"
    assert page.locator("#chart-response .reading").get_attribute("role") == "status"
