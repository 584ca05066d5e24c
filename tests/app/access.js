// What the tests of accessibility look for in the page: an object of functions, each giving a list of what is wrong.
({
  // Controls without a name: no text, aria-label, label or title; images without a text in their place.
  nameless() {
    const shown = (e) => e.getClientRects().length && getComputedStyle(e).visibility !== "hidden";
    const labelled = (e) => (e.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("");
    const own = (e) => (["INPUT", "SELECT"].includes(e.tagName) ? "" : e.textContent);
    const name = (e) => [e.getAttribute("aria-label"), ...[...(e.labels ?? [])].map((l) => l.textContent), labelled(e), own(e)].join("").trim();
    const list = "a, button, input, select, progress, meter, summary, [tabindex], [role=img], [role=application], fieldset, form";
    return [...document.querySelectorAll(list)].filter((e) => shown(e) && e.id !== "main" && !name(e))
      .concat([...document.querySelectorAll("img:not([alt])")])
      .map((e) => e.outerHTML.slice(0, 120));
  },

  // Text whose contrast to what is behind it is below WCAG's 4.5, or 3 if it is large, by the colours that are computed.
  pale() {
    const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = colour;
      pen.fillRect(0, 0, 1, 1);
      const d = pen.getImageData(0, 0, 1, 1).data;
      return [d[0], d[1], d[2], d[3] / 255];
    };
    const over = (top, under) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * under[i]).concat(1);
    const behind = (element) => {
      const layers = [];
      for (let e = element; e; e = e.parentElement) layers.unshift(rgba(getComputedStyle(e).backgroundColor));
      return layers.reduce((under, top) => over(top, under), rgba(getComputedStyle(document.body).backgroundColor));
    };
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const found = [];
    for (const e of document.querySelectorAll("body *")) {
      const writes = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
      if (!writes || e.tagName === "title" || !e.getClientRects().length || e.closest(".hidden, :disabled, label:has(:disabled)")) continue;
      const style = getComputedStyle(e);
      const drawing = e.closest("svg");
      const under = behind(drawing ? drawing.parentElement : e);
      const [a, b] = [light(over(rgba(drawing ? style.fill : style.color), under)), light(under)].sort((x, y) => y - x);
      const size = parseFloat(style.fontSize);
      const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
      const ratio = (a + 0.05) / (b + 0.05);
      if (ratio < least) found.push(`${ratio.toFixed(2)} ${e.textContent.trim().slice(0, 40)}`);
    }
    return found;
  },
})
