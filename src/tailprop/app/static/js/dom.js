// Elements, messages and small helpers. Text is always set as text, never as markup.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function fail(message) {
  if (!$("#alert").hidden && $("#alert-text").textContent === message) return; // it is not read out again
  $("#alert-text").textContent = message;
  $("#alert").hidden = false;
}

export function clearFailure() {
  $("#alert").hidden = true;
  $("#alert-text").textContent = "";
}

let saying = 0;
export function say(message) { // for screen readers; the last of several quick messages is spoken
  clearTimeout(saying);
  saying = setTimeout(() => { $("#status").textContent = message; }, 250);
}

export const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000 || size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

export function onThemeChange(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("themechange", redraw);
}
