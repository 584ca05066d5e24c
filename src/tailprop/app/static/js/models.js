// The models and runs that this machine has.

import { get } from "./api.js";
import { h } from "./dom.js";

export const loadModels = () => get("/api/models");

// Fills a select, keeps what was chosen, and says what is missing if there is nothing.
export function fillModels(select, models) {
  const kept = select.value;
  const groups = [["Shipped", models.filter((one) => one.shipped)], ["Runs", models.filter((one) => !one.shipped)]];
  select.replaceChildren(...groups.filter(([, list]) => list.length).map(([label, list]) =>
    h("optgroup", { label }, ...list.map((one) => h("option", { value: one.id, text: `${one.name} (${one.task})` })))));
  if (models.some((one) => one.id === kept)) select.value = kept;
}

// The events of a job until it is over.
export function follow(job, onChange) {
  return new Promise((resolve) => {
    const events = new EventSource(`/api/jobs/${job.id}/events`);
    const finish = (last) => { events.close(); resolve(last); };
    events.onmessage = (event) => {
      const now = JSON.parse(event.data);
      onChange(now);
      if (["done", "failed", "cancelled"].includes(now.state)) finish(now);
    };
    events.onerror = () => finish({ state: "failed", error: "TailProp does not answer; is it still running in the terminal?" });
  });
}
