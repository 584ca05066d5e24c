// A labelled slider with its value; `log` moves it by factors.

import { clamp, h } from "./dom.js";

const STEPS = 1000;

export function slider(place, { name, label, hint = "", least, most, value, log = false, step = null, show, onInput }) {
  const id = `slider-${name}-${Math.random().toString(36).slice(2, 7)}`;
  const toPlace = (v) => (log ? (STEPS * Math.log(v / least)) / Math.log(most / least) : v);
  const fromPlace = (p) => (log ? least * (most / least) ** (p / STEPS) : p);
  const input = h("input", {
    type: "range", id, name,
    min: log ? 0 : least, max: log ? STEPS : most, step: log ? 1 : step ?? (most - least) / 200,
    "aria-describedby": hint ? `${id}-hint` : null,
  });
  const output = h("output", { for: id });
  const refresh = () => {
    const text = show(api.value);
    output.textContent = text;
    input.setAttribute("aria-valuetext", text);
    input.style.setProperty("--share", `${(100 * (input.value - input.min)) / (input.max - input.min)}%`);
  };
  const api = {
    input,
    get value() { return fromPlace(Number(input.value)); },
    set value(v) { input.value = toPlace(clamp(v, least, most)); refresh(); },
    reset() { api.value = value; },
  };
  input.addEventListener("input", () => { refresh(); onInput?.(); });
  place.classList.add("slider");
  place.replaceChildren(h("label", { for: id, text: label }), output, input);
  if (hint) place.append(h("p", { class: "fine", id: `${id}-hint`, text: hint }));
  api.value = value;
  return api;
}
