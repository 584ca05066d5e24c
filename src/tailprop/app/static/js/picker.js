// Choosing an image: dropped, pasted, opened from a file, or one of the photographs that come along.

import { get, Refused, upload } from "./api.js";
import { clearFailure, fail, h, say } from "./dom.js";

let samples = null;
const current = new EventTarget(); // the image is the same on all pages
let chosen = null;

export const chosenImage = () => chosen;
export const onImage = (listen) => current.addEventListener("image", listen);

export function choose(image) {
  chosen = image;
  say(`${image.name}, ${image.width} by ${image.height} pixels`);
  current.dispatchEvent(new Event("image"));
}

export async function take(file) {
  if (!file) return;
  document.body.classList.add("busy");
  clearFailure();
  try {
    choose({ ...(await upload(file)), own: true });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    fail(error.message);
  } finally {
    document.body.classList.remove("busy");
  }
}

export async function chooseSample(id) {
  try {
    choose({ ...(await get(`/api/images/${encodeURIComponent(id)}`)), own: false });
  } catch (error) {
    fail(error.message);
  }
}

export async function loadSamples() {
  samples ??= await get("/api/samples");
  return samples;
}

export function picker(place, name) {
  const file = h("input", {
    type: "file", id: `file-${name}`, accept: "image/*", class: "file",
    onchange: (event) => { take(event.target.files[0]); event.target.value = ""; },
  });
  const shown = h("span", { class: "chosen" });
  const zone = h("label", { class: "drop", for: `file-${name}` },
    h("b", { text: "Drop an image" }), h("span", { text: "or choose a file" }), shown);
  const list = h("select", { id: `sample-${name}` }, h("option", { value: "", text: "Own image" }));
  list.addEventListener("change", () => {
    clearFailure();
    if (list.value) chooseSample(list.value);
    else show(); // an image of one's own is chosen as a file
  });
  place.replaceChildren(file, zone, h("div", { class: "row" }, h("label", { for: `sample-${name}`, text: "Photograph" }), list));
  loadSamples().then((found) => {
    list.append(...found.map((one) => h("option", { value: one.id, text: one.name })));
    show();
  }).catch((error) => fail(error.message));
  const show = () => {
    list.value = chosen && !chosen.own ? chosen.id : "";
    shown.textContent = chosen ? `${chosen.name}, ${chosen.width} × ${chosen.height} px` : "";
  };
  onImage(show);
  show();
}

export function acceptDrops() {
  addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => { if (event.clipboardData?.files.length) take(event.clipboardData.files[0]); });
}

export const pickers = (root) => root.querySelectorAll("[data-picker]").forEach((place) => picker(place, place.dataset.picker));
