"""For everybody: names of controls, contrast of text, keyboard, phones, dark and light, and no network."""

import pytest

from tests.app.conftest import Watched

PAGES = {
    "operator": "#page-operator[data-drawn]",
    "inside": "#page-inside[data-drawn][data-fields]",
    "restore": "#page-restore",
    "run": "#page-run[data-drawn]",
}

# Controls without a name: no text, aria-label, label or title.
NAMELESS = """() => {
    const shown = e => e.getClientRects().length && getComputedStyle(e).visibility !== 'hidden';
    const name = e => (e.getAttribute('aria-label') || [...(e.labels ?? [])].map(l => l.textContent).join(' ')
        || (e.getAttribute('aria-labelledby') ?? '').split(' ').map(i => document.getElementById(i)?.textContent ?? '').join('')
        || (['INPUT', 'SELECT'].includes(e.tagName) ? '' : e.textContent) || e.querySelector('title')?.textContent || '').trim();
    const list = 'a, button, input, select, progress, meter, summary, [tabindex], [role=img], [role=application], fieldset, form';
    return [...document.querySelectorAll(list)].filter(e => shown(e) && !name(e) && e.id !== 'main')
        .map(e => e.outerHTML.slice(0, 120)).concat(
        [...document.querySelectorAll('img:not([alt])')].map(e => e.outerHTML.slice(0, 120)));
}"""

# Text whose contrast to what is behind it is below WCAG's 4.5 (3 for large text), by the colours that are computed.
PALE = """() => {
    const pen = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
    const rgba = c => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = c; pen.fillRect(0, 0, 1, 1);
        const d = pen.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
    const over = (top, under) => [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * under[i]).concat(1);
    const behind = e => { const layers = []; for (let n = e; n; n = n.parentElement) layers.push(rgba(getComputedStyle(n).backgroundColor));
        return layers.reverse().reduce((under, top) => over(top, under), rgba(getComputedStyle(document.body).backgroundColor)); };
    const light = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const found = [];
    for (const e of document.querySelectorAll('body *')) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.getClientRects().length || e.closest('.hidden, :disabled, label:has(:disabled)')) continue;
        const style = getComputedStyle(e), under = behind(e.closest('svg') ? e.closest('svg').parentElement : e);
        const colour = e.closest('svg') ? style.fill : style.color;
        const [a, b] = [light(over(rgba(colour), under)), light(under)].sort((x, y) => y - x);
        const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < (large ? 3 : 4.5)) found.push(`${ratio.toFixed(2)} ${e.textContent.trim().slice(0, 40)}`);
    }
    return found;
}"""

FOCUSED = "() => document.activeElement.id || document.activeElement.textContent.trim() || document.activeElement.tagName"


@pytest.mark.parametrize("name", PAGES)
def test_controls_have_names_and_text_has_contrast(watched: Watched, name: str) -> None:
    page = watched.open(f"#{name}", PAGES[name])
    page.wait_for_timeout(100)
    assert page.evaluate(NAMELESS) == []
    assert page.locator("h1:visible").count() == 1
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert page.evaluate(PALE) == []
    light = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") != light
    assert page.evaluate(PALE) == []
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
    assert page.evaluate(FOCUSED) == "title-restore"  # the reader begins at the new page
    assert page.title().startswith("Restore")
    page.go_back()
    assert page.locator("#page-operator").is_visible()
    page.keyboard.press("Tab")


def test_values_of_a_chart_are_read_by_arrow_keys(watched: Watched) -> None:
    page = watched.open("#operator", PAGES["operator"])
    page.locator("#chart-response svg.lines").focus()
    page.keyboard.press("ArrowRight")
    text = page.locator("#chart-response .reading").text_content()
    assert text == "frequency, rad/px 0: TailProp 1, Gaussian 1, Cauchy 1, heat 1, wave 1"
    assert page.locator("#chart-response .reading").get_attribute("role") == "status"
