// The Run page: chosen runs are asked for new lines of their logs every two seconds.

import { get, post } from "./api.js";
import { lineChart } from "./chart.js";
import { $, fail, h, say, short } from "./dom.js";
import { loadModels } from "./models.js";

const COLOURS = ["c-gaussian", "c-cauchy", "c-tailprop", "c-wave", "c-heat", "c-extra"];
const EVERY_MS = 2000;
const MOST_POINTS = 600;
const MOST_RUNS = 6;

function thinned(x, y, window) {
  const smooth = [];
  let sum = 0;
  y.forEach((v, i) => { sum += v; if (i >= window) sum -= y[i - window]; smooth.push(sum / Math.min(i + 1, window)); });
  const every = Math.max(1, Math.ceil(x.length / MOST_POINTS));
  const keep = (_, i) => i % every === 0 || i === x.length - 1;
  return { x: x.filter(keep), y: smooth.filter(keep) };
}

export function mountRun() {
  const root = $("#page-run");
  const list = $("#run-list");
  const chosen = new Map(); // id -> {about, rows}
  let timer = null;
  let visible = true;
  const metricChart = lineChart($("#chart-metric"), { label: "Metric by epoch", xLabel: "epoch", yLabel: "", integerX: true });
  const lossChart = lineChart($("#chart-loss"), { label: "Training loss by step", xLabel: "step", yLabel: "loss", integerX: true });

  async function reload() {
    let runs;
    try {
      runs = (await loadModels()).filter((one) => one.run);
    } catch (error) {
      fail(error.message);
      return;
    }
    for (const id of chosen.keys()) if (!runs.some((one) => one.id === id)) chosen.delete(id);
    list.replaceChildren(...runs.map((one) => {
      const box = h("input", { type: "checkbox", value: one.id, onchange: (event) => toggle(one.id, event.target) });
      box.checked = chosen.has(one.id);
      return h("label", { class: "run" }, box, h("span", { class: "name", text: one.name }), h("span", { class: `state ${one.state === "training" ? "on" : ""}`, text: `${one.task}, ${one.state}` }));
    }));
    $("#run-empty").hidden = runs.length > 0;
    $("#run-empty").textContent = "There is no run yet. Start one in a terminal, for example: tailprop train digits. It appears here while it trains.";
    if (!chosen.size && runs.length) {
      list.querySelector("input").checked = true;
      await add(runs[0].id);
    }
  }

  async function toggle(id, box) {
    if (!box.checked) { chosen.delete(id); await drawAll(); return; }
    if (chosen.size >= MOST_RUNS) { box.checked = false; fail(`up to ${MOST_RUNS} runs can be compared`); return; }
    await add(id);
  }

  async function add(id) {
    try {
      chosen.set(id, { about: await get(`/api/runs/${id}`), rows: [] });
      await update(id);
    } catch (error) {
      chosen.delete(id);
      fail(error.message);
    }
    await drawAll();
  }

  async function update(id) {
    const one = chosen.get(id);
    for (;;) {
      const news = await get(`/api/runs/${id}/log?after=${one.rows.length}`);
      if (news.begin < one.rows.length) one.rows = [];
      one.rows.push(...news.rows);
      const ended = one.state && one.state !== news.state;
      one.state = news.state;
      if (ended) one.about = await get(`/api/runs/${id}`);
      if (one.rows.length >= news.total) return news.rows.length > 0 || ended;
    }
  }

  const metricNames = () => [...new Set([...chosen.values()].flatMap((one) => Object.keys(one.about.metrics).concat("val_loss")))]
    .filter((name) => [...chosen.values()].some((one) => one.rows.some((row) => row.kind === "epoch" && name in row)));

  function drawCurves() {
    const select = $("#run-metric");
    const kept = select.value;
    const names = metricNames();
    const labels = Object.assign({ val_loss: "evaluation loss" }, ...[...chosen.values()].map((one) => one.about.metrics));
    select.replaceChildren(...names.map((name) => h("option", { value: name, text: labels[name] ?? name })));
    if (names.includes(kept)) select.value = kept;
    const metric = select.value;
    const runs = [...chosen.values()];
    $("#run-metric-title").textContent = labels[metric] ?? "Metric";
    const series = (kind, name, by, window) => runs.map((one, i) => {
      const rows = one.rows.filter((row) => row.kind === kind && name in row);
      return { name: one.about.name, colour: COLOURS[i % COLOURS.length], ...thinned(rows.map((row) => row[by]), rows.map((row) => row[name]), window) };
    });
    metricChart.draw(series("epoch", metric, "epoch", 1));
    lossChart.draw(series("step", "loss", "step", Number($("#run-smooth").value)));
    drawTiles(runs, labels);
    root.dataset.rows = String(runs.reduce((sum, one) => sum + one.rows.length, 0));
  }

  function drawTiles(runs, labels) {
    $("#run-tiles").replaceChildren(...runs.map((one, i) => {
      const epochs = one.rows.filter((row) => row.kind === "epoch");
      const values = epochs.map((row) => row[one.about.metric]).filter((v) => v !== undefined);
      const steps = one.rows.filter((row) => row.kind === "step");
      const best = values.length ? short(Math.max(...values)) : "–";
      return h("div", { class: "view tile" },
        h("b", { class: COLOURS[i % COLOURS.length], text: one.about.name }),
        h("span", { class: "big", text: best }),
        h("span", { class: "note", text: `best ${labels[one.about.metric] ?? one.about.metric}, ${epochs.length} epoch${epochs.length === 1 ? "" : "s"}, loss ${steps.length ? short(steps.at(-1).loss) : "–"}, ${one.state ?? one.about.state}` }));
    }));
  }

  const table = (place, rows) => place.replaceChildren(h("tbody", {}, ...rows.map(([name, ...values]) => h("tr", {}, h("th", { scope: "row", text: name }), ...values.map((value) => h("td", { text: value }))))));

  async function drawAll() {
    $("#run-body").hidden = !chosen.size;
    if (!chosen.size) { $("#run-live").textContent = ""; return; }
    drawCurves();
    const runs = [...chosen.values()];
    const one = runs.at(-1).about;
    table($("#run-manifest"), Object.entries(one.manifest));
    table($("#run-settings"), Object.entries(one.settings));
    $("#run-manifest-note").textContent = one.problem;
    $("#run-manifest-view").open ||= Boolean(one.problem && Object.keys(one.manifest).length);
    $("#run-pictures-view").hidden = !runs.some((run) => run.about.pictures.length);
    $("#run-pictures").replaceChildren(...runs.flatMap((run) => run.about.pictures.map((name) =>
      h("figure", {}, h("img", { class: "shown", loading: "lazy", alt: `${name} of ${run.about.name}`, src: `/api/runs/${run.about.id}/pictures/${encodeURIComponent(name)}` }),
        h("figcaption", { class: "note", text: `${run.about.name}: ${name}` })))));
    $("#run-differences").hidden = runs.length < 2;
    if (runs.length > 1) {
      try {
        const rows = await post("/api/differences", { runs: [...chosen.keys()] });
        const head = h("thead", {}, h("tr", {}, h("th", { scope: "col", text: "setting" }), ...runs.map((run) => h("th", { scope: "col", text: run.about.name }))));
        table($("#run-differences-table"), rows.map((row) => [row.name, ...row.values]));
        $("#run-differences-table").prepend(head);
      } catch (error) {
        fail(error.message);
      }
    }
    root.dataset.drawn = String(Number(root.dataset.drawn ?? 0) + 1);
  }

  async function poll() {
    if (visible && !document.hidden) {
      try {
        let news = false;
        for (const id of [...chosen.keys()]) news = (await update(id)) || news;
        if (news) { await drawAll(); }
        const training = [...chosen.values()].filter((one) => one.state === "training").length;
        const text = training ? `${training} training; the curves are live` : "no chosen run is training";
        if ($("#run-live").textContent !== text) $("#run-live").textContent = chosen.size ? text : "";
      } catch (error) {
        fail(error.message);
      }
    }
    timer = setTimeout(poll, EVERY_MS);
  }

  $("#run-metric").addEventListener("change", drawCurves);
  $("#run-smooth").addEventListener("change", drawCurves);
  $("#run-controls").addEventListener("submit", (event) => event.preventDefault());
  reload().then(() => { say(`${list.children.length} runs`); timer ??= setTimeout(poll, EVERY_MS); });
  return { show() { visible = true; reload(); }, hide() { visible = false; } };
}
