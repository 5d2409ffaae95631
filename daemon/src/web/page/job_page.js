// The page of one job: its facts, its curves, what limits its input, the end of its log.

import { chart } from "./chart.js";
import { badge, bar, element } from "./element.js";
import { bytes, count, duration, metric, moment, percent, rate, words } from "./format.js";
import { done, flatMetrics, hasTrained, note, secondsLeft, secondsRun } from "./jobs.js";

/** Facts as terms and their values, without those that are unknown. */
function listOf(facts) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined);
  const entry = ([title, value]) => element("div", {}, element("dt", {}, title), element("dd", {}, value));
  return known.length === 0 ? null : element("dl", { class: "facts" }, known.map(entry));
}

/** How far the job is, and with what. */
function trainingFacts(job, now) {
  const { progress, activity, device, owner, priority, attempts } = job;
  const left = secondsLeft(job);
  const run = secondsRun(job, now);
  const about = progress?.total_is_estimate ? "about " : "";
  const trained = [
    ["Step", () => count(progress.step) + (progress.total_steps ? ` of ${about}${count(progress.total_steps)}` : "")],
    ["Epoch", () => `${Math.min(progress.epoch + 1, Math.max(progress.epochs, 1))} of ${progress.epochs}`],
    ["Rate", () => `${rate(progress.examples_per_second)} rows/s`],
    ["Training loss", () => metric(progress.loss)],
    ["Waiting for input", () => percent(progress.input_wait_fraction)],
    ["Skipped records", () => (progress.skipped_records > 0 ? count(progress.skipped_records) : null)],
  ];
  return [
    ...trained.map(([title, value]) => [title, hasTrained(job) ? value() : null]),
    ["Time left", left === null ? null : duration(left)],
    [job.ended_ms ? "Took" : "Runs for", run === null ? null : duration(run)],
    ["Device", device?.description],
    ["GPU in nvidia-smi", job.gpuUse],
    ["Worker", activity?.worker ? worker(activity.worker, job.cores) : null],
    ["Last checkpoint", activity?.checkpoint_step ? checkpoint(activity, now) : null],
    ["Owner", owner],
    ["Priority", priority === 0 ? null : String(priority)],
    ["Attempts", attempts > 1 ? String(attempts) : null],
    ["Submitted", moment(job.created_ms)],
  ];
}

const worker = ({ resident_bytes: memory }, cores) =>
  bytes(memory) + (cores === null ? "" : `, ${cores.toFixed(1)} cores busy`);

function checkpoint({ checkpoint_step: step, checkpoint_ms: committed }, now) {
  const age = committed ? `, ${duration(Math.max(now - committed, 0) / 1000)} ago` : "";
  return `step ${count(step)}${age}`;
}

/** The metrics of the last evaluation, without their error bounds. */
const evaluationFacts = (job) =>
  flatMetrics(job.eval)
    .filter(([name, value]) => Number.isFinite(value) && !name.endsWith("_error"))
    .map(([name, value]) => [`Held-out ${words(name)}`, Number.isInteger(value) ? count(value) : metric(value)]);

const fileFacts = ({ directory, checkpoint, best_checkpoint: best }) =>
  [
    ["Directory", directory],
    ["Checkpoint", checkpoint],
    ["Best checkpoint", best],
  ].map(([title, path]) => [title, path ? element("code", {}, path) : null]);

/** The state of a job, and its facts. */
export function facts(job, now) {
  const why = note(job);
  const fraction = hasTrained(job) ? done(job) : null;
  const shown = percent(fraction ?? 0);
  return element(
    "section",
    {},
    element("p", { class: "back" }, element("a", { href: "#" }, "← all jobs")),
    element("h1", {}, job.id, " ", badge(job.state)),
    why === "" ? null : element("p", { class: "note" }, why),
    fraction === null
      ? null
      : element("p", { class: "progress wide" }, bar(fraction, shown), element("small", {}, shown)),
    [trainingFacts(job, now), evaluationFacts(job), fileFacts(job)].map(listOf),
  );
}

/** What limits the input of a running job: the bottleneck, advice, the stages. */
export function ingest({ recent, resources, cache, truncated_rows: truncated }) {
  const details = [
    `${count(resources.lanes)} lanes`,
    `${count(resources.decoders)} decoders`,
    `${count(resources.streams)} streams`,
    `${bytes(resources.object_bytes)} read ahead per object`,
  ];
  if (cache) details.push(`cache: ${count(cache.hits)} hits, ${count(cache.misses)} misses`);
  if (truncated > 0) details.push(`${count(truncated)} truncated rows`);
  return element(
    "section",
    { class: "ingest" },
    element("h2", {}, "Ingest"),
    recent ? diagnosis(recent) : null,
    element("p", {}, element("small", {}, details.join(", "))),
  );
}

function diagnosis({
  bound,
  because,
  advice,
  stages,
  rows_per_second: rows,
  rows_per_second_without: without,
  bytes_per_second: read,
}) {
  const otherwise = without ? `; without this bottleneck at least ${rate(without)} rows/s` : "";
  const items = advice.map((advice) => element("li", {}, advice));
  return [
    element("p", {}, element("b", {}, bound), `: ${because}`),
    items.length > 0 ? element("ul", {}, items) : null,
    element("p", {}, `${rate(rows)} rows/s, ${bytes(Math.round(read))}/s${otherwise}`),
    element("table", { class: "stages" }, element("tbody", {}, stages.map(stageRow))),
  ];
}

const stageRow = ({ stage, busy, waiting, waits_for: what }) =>
  element(
    "tr",
    {},
    element("th", { scope: "row" }, stage),
    element("td", {}, busy === null ? null : [bar(busy, percent(busy)), element("small", {}, percent(busy))]),
    element("td", {}, waiting >= 0.05 ? `${waiting.toFixed(1)} waiting for ${what}` : ""),
  );

/** The curves of a job, as wide as fits. */
export function charts(curves, width) {
  const columns = width >= 820 ? 2 : 1;
  const each = Math.floor((width - (columns - 1) * 24) / columns);
  return element(
    "section",
    { class: "charts" },
    curves.map((curve) => chart(curve, each)),
  );
}

/** The end of a job's log. */
export function log(lines) {
  const line = ({ at_ms: at, level, text }) =>
    element("div", { class: level }, element("time", {}, moment(at).slice(11, 19)), ` ${text}`);
  return element(
    "section",
    {},
    element("h2", {}, "Log"),
    element("div", { class: "log", tabindex: "0" }, lines.map(line)),
  );
}
