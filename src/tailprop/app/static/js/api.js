// Requests to this machine. Answers are JSON, or JSON followed by the pixels of images.

const client = [...crypto.getRandomValues(new Uint8Array(8))].map((b) => b.toString(16).padStart(2, "0")).join("");
const MOST_BYTES = 32 * 1024 * 1024;

export class Refused extends Error {}
export class Stale extends Error {}

async function answered(promise) {
  let response;
  try {
    response = await promise;
  } catch (error) {
    if (error.name === "AbortError") throw new Stale();
    throw new Refused("TailProp does not answer; is it still running in the terminal?");
  }
  if (response.ok) return response;
  if (response.status === 409) throw new Stale();
  let reason = `the request failed (${response.status})`;
  try { reason = (await response.json()).error || reason; } catch { /* not JSON */ }
  throw new Refused(reason);
}

export const get = async (path) => (await answered(fetch(path))).json();

const ask = (path, body, signal) => answered(fetch(path, {
  method: "POST",
  headers: { "Content-Type": "application/json", "X-Client": client },
  body: JSON.stringify(body),
  signal,
}));

export const post = async (path, body, signal) => (await ask(path, body, signal)).json();

// {numbers..., images: {name: {width, height, channels, pixels}}}
export async function postForImages(path, body, signal) {
  const data = await (await ask(path, body, signal)).arrayBuffer();
  const length = new DataView(data).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
  const images = {};
  let offset = 4 + length;
  for (const { name, width, height, channels } of head.images) {
    images[name] = { width, height, channels, pixels: new Uint8Array(data, offset, width * height * channels) };
    offset += width * height * channels;
  }
  return { ...head, images };
}

export async function upload(file) {
  if (file.size > MOST_BYTES) throw new Refused(`${file.name} is larger than 32 MB; make it smaller first`);
  return (await answered(fetch(`/api/images?name=${encodeURIComponent(file.name)}`, {
    method: "POST", headers: { "X-Client": client }, body: file,
  }))).json();
}

// Calls `work` with the newest arguments: one request at a time, and what was asked for meanwhile replaces what waits.
export function latest(work, onError) {
  let running = false;
  let waiting = null;
  const run = async (args) => {
    running = true;
    try {
      await work(...args);
    } catch (error) {
      if (!(error instanceof Stale)) onError(error);
    }
    running = false;
    if (waiting) { const next = waiting; waiting = null; run(next); }
  };
  return (...args) => { if (running) waiting = args; else run(args); };
}
