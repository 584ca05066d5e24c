// Images on canvases, and canvases on which a point is chosen by mouse, finger or arrow keys.

import { clamp } from "./dom.js";

export function paint(canvas, { width, height, channels, pixels }) {
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const shown = new ImageData(width, height);
  const out = new Uint32Array(shown.data.buffer);
  if (channels === 1) {
    for (let i = 0; i < out.length; i += 1) out[i] = 0xff000000 | (pixels[i] * 0x010101);
  } else {
    for (let i = 0, j = 0; i < out.length; i += 1, j += 3) out[i] = 0xff000000 | (pixels[j + 2] << 16) | (pixels[j + 1] << 8) | pixels[j];
  }
  canvas.getContext("2d").putImageData(shown, 0, 0);
}

// The same with each pixel drawn as a square, so that a small image is sharp and marks on it are fine.
export function paintLarge(canvas, image, least = 448) {
  const times = Math.max(1, Math.ceil(least / Math.max(image.width, image.height)));
  if (times === 1) { paint(canvas, image); return; }
  const small = new OffscreenCanvas(image.width, image.height);
  paint(small, image);
  canvas.width = image.width * times;
  canvas.height = image.height * times;
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
}

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export function pointOf(canvas, event) {
  const box = canvas.getBoundingClientRect();
  return [clamp((event.clientX - box.left) / box.width, 0, 1), clamp((event.clientY - box.top) / box.height, 0, 1)];
}

// The share of the image by which a key moves a point: a pixel, ten with Shift; null for other keys.
export function stepOf(event, canvas) {
  const step = STEPS[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return null;
  const pixels = event.shiftKey ? 10 : 1;
  return [step[0] * pixels / canvas.width, step[1] * pixels / canvas.height];
}

// A ring around a point (x, y), dark and light so that it shows on any image.
export function mark(canvas, [x, y], chosen = true) {
  const pen = canvas.getContext("2d");
  const radius = Math.max(4, canvas.width / 45);
  for (const [colour, width] of [["#000", 3], [chosen ? "#ffd166" : "#fff", 1.5]]) {
    pen.beginPath();
    pen.arc(x * canvas.width, y * canvas.height, radius, 0, 2 * Math.PI);
    pen.lineWidth = width * Math.max(1, canvas.width / 256);
    pen.strokeStyle = colour;
    pen.stroke();
  }
}
