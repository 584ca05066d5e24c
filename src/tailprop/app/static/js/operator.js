// The Operator page.

import { latest, postForImages } from "./api.js";
import { mark, paint, pointOf, stepOf } from "./canvas.js";
import { lineChart } from "./chart.js";
import { $, $$, clamp, fail, say, short } from "./dom.js";
import { chosenImage, onImage } from "./picker.js";
import { slider } from "./slider.js";

const TITLES = { tailprop: "TailProp", gaussian: "Gaussian", cauchy: "Cauchy", heat: "heat", wave: "wave" };
const px = (value) => `${short(value)} px`;

export function mountOperator() {
  const root = $("#page-operator");
  const input = $("#operator-input");
  const sliders = {};
  let impulses = [[0.5, 0.5], [0.25, 0.3]];
  let selected = 0;
  let inputImage = null;
  let have = {}; // keys of the views that are shown: only the others are computed and sent
  const curves = { responses: {}, profiles: {} };

  const isPhoto = () => $("input[name=source]:checked", root).value === "photo";
  const controls = {
    lam: { label: "Gate λ", least: 0, most: 1, value: 0.5, step: 0.01, show: (v) => v.toFixed(2), hint: "0: heavy tail alone, 1: Gaussian alone" },
    k_gauss: { label: "Gaussian scale k", least: 0.01, most: 2000, value: 8, log: true, show: (v) => `${short(v)}, σ ${px(Math.sqrt(2 * v))}` },
    k_cauchy: { label: "Heavy-tail scale k", least: 0.01, most: 100, value: 1, log: true, show: (v) => (Math.abs(sliders.order?.value - 1) < 0.03 || !sliders.order ? `${short(v)}, half-width ${px(v)}` : short(v)) },
    order: { label: "Order α of the heavy tail", least: 0.2, most: 2, value: 1, step: 0.05, show: (v) => (v === 1 ? "1, Cauchy" : v === 2 ? "2, Gaussian" : v.toFixed(2)) },
    heat_fall: { label: "Heat: fall of k with frequency", least: 0, most: 10, value: 1, step: 0.1, show: (v) => (v === 0 ? "0, the Gaussian" : v.toFixed(1)) },
    wave_time: { label: "Wave: time", least: 0, most: 60, value: 8, step: 0.5, show: (v) => v.toFixed(1) },
    wave_damping: { label: "Wave: damping", least: 0, most: 2, value: 0.1, step: 0.02, show: (v) => v.toFixed(2) },
  };
  for (const [name, how] of Object.entries(controls)) {
    sliders[name] = slider($(`[data-slider=${name}]`, root), { name, ...how, onInput: () => update() });
  }
  const response = lineChart($("#chart-response"), { label: "Response by frequency", xLabel: "frequency, rad/px", yLabel: "factor", xRange: [0, Math.PI] });
  const profile = lineChart($("#chart-profile"), { label: "Radial profile of the kernel", xLabel: "distance, px", yLabel: "over its peak", logY: true, yRange: [-6, 0.1] });

  const refresh = latest(async (body) => {
    const begun = performance.now();
    const found = await postForImages("/api/operator", { ...body, have });
    for (const canvas of $$("canvas[data-view]", root)) {
      const image = found.images[canvas.dataset.view];
      if (!image) continue; // it is the same as before
      if (canvas === input) inputImage = image;
      else paint(canvas, image);
    }
    have = found.keys;
    Object.assign(curves.responses, found.responses);
    Object.assign(curves.profiles, found.profiles);
    drawInput();
    const lines = (x, values) => Object.keys(TITLES).map((name) => ({ name: TITLES[name], colour: `c-${name}`, x, y: values[name] }));
    response.draw(lines(found.frequencies, curves.responses));
    profile.draw(lines(found.distances, curves.profiles));
    const spent = performance.now() - begun;
    $("#operator-speed").textContent = `${Math.round(spent)} ms from the slider to the picture`;
    root.dataset.drawn = String(Number(root.dataset.drawn ?? 0) + 1);
    root.dataset.ms = spent.toFixed(1);
  }, (error) => fail(error.message));

  function drawInput() {
    if (!inputImage) return;
    paint(input, inputImage);
    if (!isPhoto()) impulses.forEach((point, i) => mark(input, point, i === selected));
  }

  function update() {
    sliders.k_cauchy.value = sliders.k_cauchy.value; // its text depends on the order
    const image = chosenImage();
    if (isPhoto() && !image) return;
    refresh({
      size: Number($("#operator-size").value),
      image: isPhoto() ? image.id : "",
      impulses,
      ...Object.fromEntries(Object.entries(sliders).map(([name, one]) => [name, one.value])),
    });
  }

  function showSource() {
    const photo = isPhoto();
    $("#operator-clear").hidden = photo;
    $("#operator-input-note").textContent = photo
      ? "The photograph as it is."
      : "Click to add an impulse, drag to move it. Arrow keys move the marked one, Enter adds, N marks the next, Delete removes. Five decades of brightness.";
    input.tabIndex = photo ? -1 : 0;
    input.setAttribute("role", photo ? "img" : "application");
    if (photo) input.removeAttribute("aria-describedby");
    else input.setAttribute("aria-describedby", "operator-input-note");
    input.classList.toggle("clickable", !photo);
    describe();
    update();
  }

  function describe() {
    const [x, y] = impulses[selected] ?? [0, 0];
    const where = impulses.length ? `impulse ${selected + 1} of ${impulses.length} at ${Math.round(100 * x)} percent across, ${Math.round(100 * y)} percent down` : "no impulses";
    input.setAttribute("aria-label", isPhoto() ? "Input photograph" : `Map of impulses, ${where}`);
    return where;
  }

  function moved() { say(describe()); drawInput(); update(); }

  input.addEventListener("pointerdown", (event) => {
    if (isPhoto()) return;
    const point = pointOf(input, event);
    const near = impulses.findIndex(([x, y]) => Math.hypot(x - point[0], y - point[1]) < 0.04);
    if (near >= 0) selected = near;
    else { impulses.push(point); impulses = impulses.slice(-64); selected = impulses.length - 1; }
    input.setPointerCapture(event.pointerId);
    moved();
  });
  input.addEventListener("pointermove", (event) => {
    if (isPhoto() || !input.hasPointerCapture(event.pointerId)) return;
    impulses[selected] = pointOf(input, event);
    moved();
  });
  input.addEventListener("keydown", (event) => {
    if (isPhoto()) return;
    const step = stepOf(event, input);
    if (step && impulses.length) impulses[selected] = impulses[selected].map((v, i) => clamp(v + step[i], 0, 1));
    else if (event.key === "Enter" && impulses.length < 64) { impulses.push([0.5, 0.5]); selected = impulses.length - 1; }
    else if ((event.key === "Delete" || event.key === "Backspace") && impulses.length) { impulses.splice(selected, 1); selected = Math.max(0, selected - 1); }
    else if (event.key === "n" && impulses.length) selected = (selected + 1) % impulses.length;
    else return;
    event.preventDefault();
    moved();
  });
  $("#operator-clear").addEventListener("click", () => { impulses = []; selected = 0; moved(); });
  $("#operator-reset").addEventListener("click", () => { Object.values(sliders).forEach((one) => one.reset()); update(); say("settings reset"); });
  $("#operator-size").addEventListener("change", update);
  $("#operator-controls").addEventListener("submit", (event) => event.preventDefault());
  $$("input[name=source]", root).forEach((radio) => radio.addEventListener("change", showSource));
  onImage(() => {
    $("input[name=source][value=photo]", root).checked = true;
    showSource();
  });
  showSource();
  return { show: update };
}
