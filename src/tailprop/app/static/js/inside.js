// The page Inside a model.

import { latest, post, postForImages } from "./api.js";
import { mark, paint, paintLarge, pointOf, stepOf } from "./canvas.js";
import { gateChart } from "./gates.js";
import { lineChart } from "./chart.js";
import { $, clamp, fail, h, say, short } from "./dom.js";
import { fillModels, follow, loadModels } from "./models.js";
import { chosenImage, onImage } from "./picker.js";

const COLOURS = ["c-tailprop", "c-gaussian", "c-cauchy", "c-heat", "c-wave", "c-extra"];

export function mountInside() {
  const root = $("#page-inside");
  const model = $("#inside-model");
  const canvas = $("#inside-image");
  const sets = {}; // by model: the values over the set
  let point = [0.5, 0.5];
  let found = null;
  let job = null;
  let visible = true;
  const responses = lineChart($("#chart-layers"), { label: "Response of each layer", xLabel: "frequency, rad/position", yLabel: "factor", xRange: [0, Math.PI] });
  const gates = gateChart($("#chart-gates"));

  const field = latest(async () => {
    const image = chosenImage();
    if (!image || !model.value) return;
    const answer = await postForImages("/api/inside/field", { model: model.value, image: image.id, x: point[0], y: point[1] });
    paintLarge($("#inside-field"), answer.images.field);
    const [h1, w1] = answer.map;
    $("#inside-field-note").textContent = `Half of it lies in ${short(answer.half)} % of the image and 90 % in ${short(answer.most)} %. The last map has ${h1} × ${w1} positions.`;
    root.dataset.fields = String(Number(root.dataset.fields ?? 0) + 1);
  }, (error) => fail(error.message));

  const inspect = latest(async () => {
    const image = chosenImage();
    if (!image || !model.value) return;
    root.setAttribute("aria-busy", "true");
    try {
      found = await postForImages("/api/inside", { model: model.value, image: image.id });
    } finally {
      root.removeAttribute("aria-busy");
    }
    draw();
    field();
    root.dataset.drawn = String(Number(root.dataset.drawn ?? 0) + 1);
  }, (error) => fail(error.message));

  function drawImage() {
    if (!found) return;
    paintLarge(canvas, found.images.shown);
    mark(canvas, point);
    canvas.setAttribute("aria-label", `Image; the point is ${Math.round(100 * point[0])} percent across, ${Math.round(100 * point[1])} percent down`);
  }

  function draw() {
    drawImage();
    $("#inside-facts").textContent = [found.model, found.mixer, found.data, found.score].filter(Boolean).join(", ");
    drawAnswer();
    const stages = [...new Set(found.layers.map((one) => one.stage))];
    const select = $("#inside-stage");
    const kept = select.value;
    select.replaceChildren(...stages.map((stage) => h("option", { value: stage, text: `stage ${stage}` })));
    select.value = stages.includes(Number(kept)) ? kept : stages.at(-1) ?? "";
    drawResponses();
    drawGates();
  }

  function drawAnswer() {
    const classes = found.answer.classes ?? [];
    $("#inside-classes").replaceChildren(...classes.map((one) => h("li", {},
      h("span", { class: "name", text: one.name }),
      h("meter", { min: 0, max: 1, value: one.probability, "aria-label": `probability of ${one.name}` }),
      h("span", { class: "value", text: `${(100 * one.probability).toFixed(1)} %` }))));
    const picture = found.images.answer;
    $("#inside-answer").hidden = !picture;
    if (picture) paint($("#inside-answer"), picture);
    $("#inside-answer-note").textContent = classes.length ? "The five most probable classes." : "What the model makes of the image.";
    if (classes.length) say(`prediction ${classes[0].name}, ${Math.round(100 * classes[0].probability)} percent`);
  }

  function drawResponses() {
    const stage = Number($("#inside-stage").value);
    const layers = (found?.layers ?? []).filter((one) => one.stage === stage);
    responses.draw(layers.map((one, i) => ({ name: `layer ${one.layer}, ${one.gate_name} ${one.gate.toFixed(2)}`, colour: COLOURS[i % COLOURS.length], x: found.frequencies, y: one.response })));
  }

  function drawGates() {
    gates.draw(found?.layers ?? [], sets[model.value]?.values ?? {}, $("#inside-whole").checked);
    const set = sets[model.value];
    $("#inside-set-note").textContent = set ? `Beside ${set.images} images of ${set.where}.` : "Each gate beside its values over a set of images.";
  }

  async function compareSet() {
    const asked = model.value;
    if (!asked || job) return;
    const bar = $("#inside-progress");
    try {
      job = await post("/api/inside/set", { model: asked });
      bar.hidden = false;
      $("#inside-cancel").hidden = false;
      $("#inside-set").disabled = true;
      const last = await follow(job, (now) => { bar.value = now.share; });
      if (last.state === "failed") fail(last.error);
      if (last.state === "done") { sets[asked] = last.result; say(`compared over ${last.result.images} images`); drawGates(); root.dataset.compared = asked; }
    } catch (error) {
      fail(error.message);
    }
    job = null;
    bar.hidden = true;
    $("#inside-cancel").hidden = true;
    $("#inside-set").disabled = false;
  }

  async function reload() {
    try {
      const models = (await loadModels()).filter((one) => one.weights);
      fillModels(model, models);
      const none = !models.length;
      $("#inside-empty").hidden = !none;
      $("#inside-empty").textContent = "There is no trained model yet. Train one in a terminal, for example: tailprop train digits";
      inspect();
    } catch (error) {
      fail(error.message);
    }
  }

  function moved() { drawImage(); field(); }
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); point = pointOf(canvas, event); moved(); });
  canvas.addEventListener("pointermove", (event) => { if (canvas.hasPointerCapture(event.pointerId)) { point = pointOf(canvas, event); moved(); } });
  canvas.addEventListener("keydown", (event) => {
    const step = stepOf(event, canvas);
    if (!step) return;
    event.preventDefault();
    point = point.map((v, i) => clamp(v + 4 * step[i], 0, 1));
    moved();
  });
  model.addEventListener("change", () => { found = null; inspect(); });
  $("#inside-stage").addEventListener("change", drawResponses);
  $("#inside-whole").addEventListener("change", drawGates);
  $("#inside-set").addEventListener("click", compareSet);
  $("#inside-cancel").addEventListener("click", () => { if (job) post(`/api/jobs/${job.id}/cancel`, {}).catch((error) => fail(error.message)); });
  $("#inside-controls").addEventListener("submit", (event) => event.preventDefault());
  onImage(() => { if (visible) inspect(); });
  reload();
  return { show() { visible = true; reload(); }, hide() { visible = false; } };
}
