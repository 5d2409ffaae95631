// The host's GPUs: a table of all, and the line of a job.

import { bar, element } from "./element.js";
import { bytes, duration, words } from "./format.js";

const whole = (fraction) => `${Math.round(fraction * 100)} %`;

/** Fields that the driver does not report are null. */
const isKnown = (value) => value !== null && value !== undefined;

const power = ({ watts, limit_watts: limit }) =>
  isKnown(watts) ? `${watts.toFixed(0)}${isKnown(limit) ? ` of ${limit.toFixed(0)}` : ""} W` : null;

const temperature = ({ celsius }) => (isKnown(celsius) ? `${celsius} °C` : null);

/** What somebody may have to mend. */
function notes({ problem, throttled_by: reasons, uncorrected_errors: errors }) {
  if (problem) return [problem];
  const found = [];
  if (reasons.length > 0) found.push(`slowed by ${reasons.map(words).join(", ")}`);
  if (errors > 0) found.push(errors === 1 ? "1 memory error" : `${errors} memory errors`);
  return found;
}

const measured = (fraction, text) => (fraction === null ? null : [bar(fraction, text), element("small", {}, text)]);

function memory({ used_bytes: used, memory_bytes: all }) {
  if (!isKnown(used) || !isKnown(all)) return null;
  return measured(used / Math.max(all, 1), `${bytes(used)} of ${bytes(all)}`);
}

/** The jobs on a GPU, with links, and what else uses it. */
function users({ jobs, other_bytes: other, is_divided: divided }) {
  const found = jobs.map(({ id }) => element("a", { href: `#${id}` }, id));
  if (other > 0) found.push(`other programs ${bytes(other)}`);
  if (divided) found.push("MIG");
  return found.flatMap((user, nth) => (nth === 0 ? [user] : [", ", user]));
}

const columns = [
  ["GPU", (gpu) => [String(gpu.number), " ", element("small", {}, gpu.name)]],
  ["Busy", (gpu) => measured(gpu.busy, isKnown(gpu.busy) ? whole(gpu.busy) : "")],
  ["Memory", memory],
  ["Temperature", temperature],
  ["Power", power],
  ["Used by", users],
  ["", (gpu) => element("span", { class: "warning" }, notes(gpu).join(", "))],
];

/** The table of the GPUs, and why they cannot be read; null on a host without any. */
export function table({ gpus, at_ms: now }) {
  if (!gpus) return null;
  const { gpus: all, problem, sampled_ms: sampled, is_stale: stale } = gpus;
  const age = isKnown(sampled) ? `; last read ${duration(Math.max(now - sampled, 0) / 1000)} ago` : "";
  const head = columns.map(([title]) => element("th", { scope: "col" }, title));
  const row = (gpu) =>
    element(
      "tr",
      {},
      columns.map(([, content]) => element("td", {}, content(gpu))),
    );
  return element(
    "section",
    { class: "gpus" },
    problem ? element("p", { class: "note" }, `GPUs: ${problem}${age}`) : null,
    all.length === 0
      ? null
      : element(
          "div",
          { class: stale ? "scroll old" : "scroll" },
          element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, all.map(row))),
        ),
  );
}

/** What a job uses of the GPUs that it computes on, a line for each; null without any. */
export function ofJob(gpus, id) {
  if (!gpus || gpus.is_stale) return null;
  const line = (gpu) => {
    const share = gpu.jobs.find((job) => job.id === id)?.used_bytes;
    const parts = [
      isKnown(gpu.busy) ? `${whole(gpu.busy)} busy` : null,
      isKnown(share) && isKnown(gpu.memory_bytes) ? `${bytes(share)} of ${bytes(gpu.memory_bytes)}` : null,
      temperature(gpu),
      power(gpu),
      ...notes(gpu),
    ];
    return `${gpu.number}: ${parts.filter((part) => part !== null).join(", ")}`;
  };
  const used = gpus.gpus.filter((gpu) => gpu.jobs.some((job) => job.id === id));
  return used.length === 0 ? null : used.map(line).join("; ");
}
