// Gates of all layers: a row each, dots for the images of a set, a mark for the image itself.

import { ticksOf } from "./chart.js";
import { clamp, h, s } from "./dom.js";

const ROW = 26;
const PAD = { left: 122, right: 56, top: 22, bottom: 26 };

export function gateChart(place) {
  function draw(layers, sets, whole = false) {
    if (!layers.length) {
      place.replaceChildren(h("p", { class: "note", text: "This network has no tail propagation, so there is no gate." }));
      return;
    }
    const W = clamp(place.clientWidth || 760, 280, 860);
    const top = layers.some((one) => one.gate_name !== "λ") ? 2 : 1; // an order goes to 2
    const height = PAD.top + PAD.bottom + ROW * layers.length;
    const all = [...layers.map((one) => one.gate), ...Object.values(sets).flat()];
    const room = Math.max(0.01, 0.1 * (Math.max(...all) - Math.min(...all)));
    const [low, high] = whole ? [0, top] : [Math.max(0, Math.min(...all) - room), Math.min(top, Math.max(...all) + room)];
    const x = (v) => PAD.left + ((v - low) / (high - low)) * (W - PAD.left - PAD.right);
    const svg = s("svg", { viewBox: `0 0 ${W} ${height}`, role: "img", class: "lines gates", "aria-label": `Gates: ${layers.map((one) => `stage ${one.stage} layer ${one.layer} ${one.gate.toFixed(2)}`).join(", ")}` });
    for (const { v, text } of ticksOf(low, high, W < 500 ? 3 : 5)) {
      svg.append(s("line", { class: "grid", x1: x(v), x2: x(v), y1: PAD.top - 6, y2: height - PAD.bottom }));
      svg.append(s("text", { class: "tick", x: x(v), y: height - 8, "text-anchor": "middle", text }));
    }
    layers.forEach((one, i) => {
      const y = PAD.top + ROW * (i + 0.5);
      svg.append(s("text", { class: "tick", x: PAD.left - 10, y: y + 4, "text-anchor": "end", text: `stage ${one.stage}, layer ${one.layer}` }));
      svg.append(s("line", { class: "grid", x1: PAD.left, x2: W - PAD.right, y1: y, y2: y }));
      const values = sets[`${one.stage}.${one.layer}`] ?? [];
      values.forEach((v, k) => svg.append(s("circle", { class: "dot c-gaussian faint", cx: x(v), cy: y + ((k * 7) % 13) - 6, r: 3 })));
      if (values.length) {
        const middle = values[Math.floor(values.length / 2)];
        svg.append(s("line", { class: "median", x1: x(middle), x2: x(middle), y1: y - 9, y2: y + 9 }));
      }
      svg.append(s("path", { class: "mark c-cauchy", d: `M${x(one.gate)} ${y - 7}l6 7l-6 7l-6 -7z` }));
      svg.append(s("text", { class: "tick", x: W - PAD.right + 10, y: y + 4, text: one.gate.toFixed(3) }));
    });
    place.replaceChildren(svg);
  }
  draw([], {});
  return { draw };
}
