// The Restore page.

import { get, post } from "./api.js";
import { $, $$, clamp, clearFailure, fail, h, say } from "./dom.js";
import { fillModels, follow, loadModels } from "./models.js";
import { chosenImage, onImage } from "./picker.js";
import { slider } from "./slider.js";

export function mountRestore() {
  const root = $("#page-restore");
  const model = $("#restore-model");
  const compare = $("#restore-compare");
  let job = null;
  let trained = {};
  const sigma = slider($("[data-slider=sigma]", root), { name: "sigma", label: "Noise σ", least: 0, most: 75, value: 25, step: 1, show: (v) => `${v} of 255` });
  const quality = slider($("[data-slider=quality]", root), { name: "quality", label: "JPEG quality", least: 5, most: 95, value: 15, step: 1, show: (v) => String(v) });
  const cut = slider($("[data-slider=cut]", root), {
    name: "cut", label: "Before and after", least: 0, most: 100, value: 50, step: 1,
    show: (v) => `${Math.round(v)} % before`, onInput: () => compare.style.setProperty("--cut", `${cut.value}%`),
  });
  const damage = () => $("input[name=damage]:checked", root).value;

  function showDamage() {
    const kind = damage();
    $("[data-slider=sigma]", root).hidden = kind !== "noise";
    $("[data-slider=quality]", root).hidden = kind !== "jpeg";
  }

  async function showModel() {
    if (!model.value) return;
    try {
      trained = await get(`/api/restorers/${model.value}`);
    } catch (error) {
      fail(error.message);
      return;
    }
    const enlarges = (trained.scale ?? 1) > 1;
    const range = trained.sigma_range ?? trained.quality_range;
    const texts = {
      noise: `Trained on noise, σ ${range ? range.join(" to ") : trained.sigma}.`,
      jpeg: `Trained on JPEG, quality ${range ? range.join(" to ") : trained.quality}.`,
      downscale: `Enlarges ${trained.scale} times.`,
      pairs: "Trained on pairs of images.",
    };
    $("#restore-facts").textContent = texts[trained.degradation] ?? "";
    for (const radio of $$("input[name=damage]", root)) {
      radio.disabled = radio.value !== "none" && (radio.value === "downscale") !== enlarges;
    }
    const wanted = { noise: "noise", jpeg: "jpeg", downscale: "downscale", pairs: enlarges ? "downscale" : "none" }[trained.degradation] ?? "none";
    $(`input[name=damage][value=${wanted}]`, root).checked = true;
    if (trained.degradation === "noise" && !range) sigma.value = trained.sigma;
    if (trained.degradation === "jpeg" && !range) quality.value = trained.quality;
    showDamage();
  }

  async function reload() {
    try {
      const models = (await loadModels()).filter((one) => one.weights && one.task === "restore");
      const kept = model.value;
      fillModels(model, models);
      $("#restore-start").disabled = !models.length;
      if (!models.length) {
        $("#restore-empty").hidden = false;
        $("#restore-empty").textContent = "There is no trained restoration network. Train one in a terminal; recipes whose names begin with train400 are for that.";
      } else if (model.value !== kept) await showModel();
    } catch (error) {
      fail(error.message);
    }
  }

  async function start(event) {
    event.preventDefault();
    const image = chosenImage();
    if (job) return;
    if (!image || !model.value) { fail(image ? "there is no model yet" : "choose a photograph first"); return; }
    clearFailure();
    const bar = $("#restore-progress");
    const status = $("#restore-status");
    try {
      job = await post("/api/restore", {
        model: model.value, image: image.id, damage: damage(), sigma: sigma.value, quality: quality.value, seed: Math.floor(Math.random() * 1e6),
      });
      bar.hidden = false;
      bar.value = 0;
      $("#restore-cancel").hidden = false;
      $("#restore-start").disabled = true;
      let spoken = -1;
      const last = await follow(job, (now) => {
        bar.value = now.share;
        const percent = Math.floor(now.share * 10) * 10;
        if (percent !== spoken) { spoken = percent; status.textContent = now.state === "waiting" ? "waiting" : `${percent} %`; }
      });
      if (last.state === "failed") { status.textContent = ""; fail(last.error); }
      if (last.state === "cancelled") status.textContent = "cancelled";
      if (last.state === "done") show(last, image.name);
    } catch (error) {
      fail(error.message);
    }
    job = null;
    bar.hidden = true;
    $("#restore-cancel").hidden = true;
    $("#restore-start").disabled = false;
  }

  function show(last, name) {
    const { result } = last;
    $("#restore-before").src = `/api/jobs/${last.id}/before.png`;
    $("#restore-after").src = `/api/jobs/${last.id}/after.png`;
    for (const one of $$("img", compare)) { one.width = result.width; one.height = result.height; }
    compare.style.setProperty("--cut", `${cut.value}%`);
    compare.style.setProperty("--own-width", `${result.width}px`);
    const link = $("#restore-download");
    link.href = `/api/jobs/${last.id}/after.png`;
    link.download = `${name.replace(/\.[^.]*$/, "").replace(/[^\p{L}\p{N} _-]/gu, "_").slice(0, 80) || "photo"}_restored.png`;
    const numbers = [
      ...(result.psnr_before === undefined ? [] : [
        ["PSNR before", `${result.psnr_before.toFixed(2)} dB`], ["PSNR after", `${result.psnr_after.toFixed(2)} dB`],
        ["Gain", `${(result.psnr_after - result.psnr_before).toFixed(2)} dB`],
      ]),
      ["Size", `${result.width} × ${result.height}`], ["Time", `${result.seconds.toFixed(2)} s`],
    ];
    $("#restore-numbers").replaceChildren(...numbers.map(([label, value]) => h("div", {}, h("b", { text: value }), h("span", { text: label }))));
    $("#restore-empty").hidden = true;
    $("#restore-result").hidden = false;
    const text = result.psnr_before === undefined ? "restored" : `restored: PSNR from ${result.psnr_before.toFixed(2)} to ${result.psnr_after.toFixed(2)} dB`;
    $("#restore-status").textContent = text;
    root.dataset.done = String(Number(root.dataset.done ?? 0) + 1);
  }

  const drag = (event) => {
    const box = compare.getBoundingClientRect();
    cut.value = clamp((100 * (event.clientX - box.left)) / box.width, 0, 100);
    compare.style.setProperty("--cut", `${cut.value}%`);
  };
  compare.addEventListener("pointerdown", (event) => { compare.setPointerCapture(event.pointerId); drag(event); });
  compare.addEventListener("pointermove", (event) => { if (compare.hasPointerCapture(event.pointerId)) drag(event); });
  $("#restore-controls").addEventListener("submit", start);
  $("#restore-cancel").addEventListener("click", () => { if (job) post(`/api/jobs/${job.id}/cancel`, {}).catch((error) => fail(error.message)); });
  $("#restore-actual").addEventListener("change", (event) => compare.classList.toggle("actual", event.target.checked));
  model.addEventListener("change", showModel);
  $$("input[name=damage]", root).forEach((radio) => radio.addEventListener("change", showDamage));
  onImage(() => say("press Restore"));
  showDamage();
  reload();
  return { show: reload };
}
