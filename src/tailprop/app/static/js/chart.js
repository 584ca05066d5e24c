// Line charts as SVG: axes, grid, a legend by line style and colour, values under the pointer or the arrow keys.

import { clamp, h, s, short } from "./dom.js";

const PAD = { left: 58, right: 12, top: 10, bottom: 38 };
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "4 2", "1 3"];

export function ticksOf(low, high, count, least = 0) {
  const raw = Math.max(least, (high - low) / Math.max(1, count));
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * size).find((f) => f >= raw);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) + (Math.abs(step / 10 ** Math.floor(Math.log10(step)) - 2.5) < 0.01 ? 1 : 0);
  return found.map((v) => ({ v, text: Math.abs(v) >= 1e5 ? short(v) : v.toFixed(Math.min(6, digits)) }));
}

function logTicks(low, high) {
  const found = [];
  const every = Math.max(1, Math.ceil((high - low) / 6));
  for (let p = Math.ceil(low - 1e-9); p <= high + 1e-9; p += every) found.push({ v: p, text: p === 0 ? "1" : `1e${p}` });
  return found;
}

// series: [{name, colour (a CSS variable), x: [], y: []}]
export function lineChart(place, { label, xLabel, yLabel, logY = false, yRange = null, xRange = null, integerX = false, legend = true }) {
  const svg = s("svg", { role: "img", tabindex: 0, class: "lines" });
  const keys = h("ul", { class: "legend" });
  const reading = h("p", { class: "reading", role: "status" });
  place.replaceChildren(svg, ...(legend ? [keys] : []), reading);
  let drawn = null;
  let at = null;
  let W = 460;
  let H = 250;

  function draw(series) {
    W = clamp(place.clientWidth || W, 260, 620); // as many units as pixels, so that text has its size
    H = Math.round(clamp(0.54 * W, 180, 300));
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    const points = (v) => (logY ? (v > 0 ? Math.log10(v) : null) : v);
    const all = series.map((one) => ({ ...one, v: one.y.map((v) => (v === null ? null : points(v))) }));
    const xs = all.flatMap((one) => one.x);
    const ys = all.flatMap((one) => one.v).filter((v) => v !== null && Number.isFinite(v));
    let [x0, x1] = xRange ?? (xs.length ? [Math.min(...xs), Math.max(...xs)] : [0, 1]);
    let [y0, y1] = yRange ?? (ys.length ? [Math.min(...ys), Math.max(...ys)] : [0, 1]);
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    if (y0 === y1) { y0 -= Math.abs(y0) * 0.1 || 0.5; y1 += Math.abs(y1) * 0.1 || 0.5; }
    if (!yRange) { const room = (y1 - y0) * 0.05; y0 -= room; y1 += room; }
    const px = (v) => PAD.left + ((v - x0) / (x1 - x0)) * (W - PAD.left - PAD.right);
    const py = (v) => H - PAD.bottom - ((clamp(v, y0 - (y1 - y0), y1 + (y1 - y0)) - y0) / (y1 - y0)) * (H - PAD.top - PAD.bottom);
    const parts = [s("title", { text: label })];
    for (const { v: t, text } of logY ? logTicks(y0, y1) : ticksOf(y0, y1, 5)) {
      parts.push(s("line", { class: "grid", x1: PAD.left, x2: W - PAD.right, y1: py(t), y2: py(t) }));
      parts.push(s("text", { class: "tick", x: PAD.left - 6, y: py(t) + 4, "text-anchor": "end", text }));
    }
    for (const { v: t, text } of ticksOf(x0, x1, W < 360 ? 4 : 6, integerX ? 1 : 0)) {
      parts.push(s("text", { class: "tick", x: px(t), y: H - PAD.bottom + 16, "text-anchor": "middle", text }));
    }
    parts.push(s("line", { class: "axis", x1: PAD.left, x2: W - PAD.right, y1: H - PAD.bottom, y2: H - PAD.bottom }));
    parts.push(s("text", { class: "tick", x: (PAD.left + W - PAD.right) / 2, y: H - 4, "text-anchor": "middle", text: xLabel }));
    parts.push(s("text", { class: "tick", x: 12, y: (H - PAD.bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(H - PAD.bottom) / 2})`, text: yLabel }));
    const inside = s("svg", { x: PAD.left, y: PAD.top, width: W - PAD.left - PAD.right, height: H - PAD.top - PAD.bottom, viewBox: `${PAD.left} ${PAD.top} ${W - PAD.left - PAD.right} ${H - PAD.top - PAD.bottom}` });
    const dots = []; // beside the lines, which are cut at the frame
    all.forEach((one, index) => {
      let path = "";
      let pen = "M";
      one.x.forEach((x, i) => {
        if (one.v[i] === null || !Number.isFinite(one.v[i])) { pen = "M"; return; }
        path += `${pen}${px(x).toFixed(1)} ${py(one.v[i]).toFixed(1)}`;
        pen = "L";
      });
      inside.append(s("path", { d: path || "M0 0", class: `line ${one.colour}`, "stroke-dasharray": one.dash ?? DASHES[index % DASHES.length] }));
      if (one.x.length === 1 && path) dots.push(s("circle", { cx: px(one.x[0]), cy: py(one.v[0]), r: 3, class: `dot ${one.colour}` }));
    });
    const cursor = s("line", { class: "cursor", y1: PAD.top, y2: H - PAD.bottom, x1: -9, x2: -9 });
    svg.replaceChildren(...parts, inside, ...dots, cursor);
    svg.setAttribute("aria-label", `${label}: ${series.map((one) => one.name).join(", ")}. Arrow keys read the values.`);
    keys.replaceChildren(...all.map((one, index) => h("li", {},
      s("svg", { viewBox: "0 0 26 8", width: 26, height: 8, "aria-hidden": "true" },
        s("path", { d: "M0 4H26", class: `line ${one.colour}`, "stroke-dasharray": one.dash ?? DASHES[index % DASHES.length] })),
      h("span", { text: one.name }))));
    drawn = { series, x0, x1, px, cursor };
    if (at !== null) read(at, false);
  }

  function read(share, speak = true) {
    if (!drawn || !drawn.series.some((one) => one.x.length)) return;
    at = clamp(share, 0, 1);
    const x = drawn.x0 + at * (drawn.x1 - drawn.x0);
    const texts = drawn.series.map((one) => {
      if (!one.x.length) return null;
      let best = 0;
      one.x.forEach((v, i) => { if (Math.abs(v - x) < Math.abs(one.x[best] - x)) best = i; });
      return `${one.name} ${short(one.y[best])}`;
    }).filter(Boolean);
    drawn.cursor.setAttribute("x1", drawn.px(x));
    drawn.cursor.setAttribute("x2", drawn.px(x));
    if (speak) reading.textContent = `${xLabel} ${short(x)}: ${texts.join(", ")}`;
  }

  function leave() {
    at = null;
    reading.textContent = "";
    drawn?.cursor.setAttribute("x1", -9);
    drawn?.cursor.setAttribute("x2", -9);
  }

  const shareOf = (event) => {
    const box = svg.getBoundingClientRect();
    return (((event.clientX - box.left) / box.width) * W - PAD.left) / (W - PAD.left - PAD.right);
  };
  svg.addEventListener("pointermove", (event) => read(shareOf(event)));
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    read((at ?? (step > 0 ? -0.02 : 1.02)) + step * (event.shiftKey ? 0.1 : 0.02));
  });
  draw([]);
  return { draw };
}
