// Pages by the part of the address after #; the theme switch; messages.

import { $, $$, clearFailure, fail } from "./dom.js";
import { mountInside } from "./inside.js";
import { loadModels } from "./models.js";
import { mountOperator } from "./operator.js";
import { acceptDrops, chooseSample, pickers } from "./picker.js";
import { mountRestore } from "./restore.js";
import { mountRun } from "./run.js";

const MOUNT = { operator: mountOperator, inside: mountInside, restore: mountRestore, run: mountRun };
const TITLES = { operator: "Operator", inside: "Inside a model", restore: "Restore", run: "Run" };
const mounted = {};

function show(moveFocus) {
  const wanted = location.hash.slice(1).split("/")[0];
  const name = wanted in TITLES ? wanted : "operator";
  for (const section of $$("main > section")) section.hidden = section.id !== `page-${name}`;
  for (const link of $$("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[name]} – TailProp`;
  clearFailure();
  if (!mounted[name] && MOUNT[name]) mounted[name] = MOUNT[name]();
  else mounted[name]?.show?.();
  if (moveFocus) { $(`#title-${name}`).focus({ preventScroll: true }); scrollTo(0, 0); }
  for (const [other, page] of Object.entries(mounted)) if (other !== name) page?.hide?.();
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* storage is off */ }
  dispatchEvent(new Event("themechange"));
}

addEventListener("hashchange", () => { if (location.hash !== "#main") show(true); });
addEventListener("unhandledrejection", (event) => fail(`unexpected error: ${event.reason?.message ?? event.reason}`));
$("#theme").addEventListener("click", switchTheme);
$("#alert-close").addEventListener("click", clearFailure);
$(".skip").addEventListener("click", (event) => { event.preventDefault(); $("#main").focus(); });
acceptDrops();
pickers(document);
show(false);
loadModels().catch((error) => fail(error.message)).finally(() => { $("#starting").hidden = true; }); // it needs PyTorch
chooseSample("astronaut");
document.documentElement.dataset.ready = "true";
