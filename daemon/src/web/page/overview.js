// The overview: the daemon and its host in a few figures, and the table of jobs.

import { sparkline } from "./chart.js";
import { badge, bar, element } from "./element.js";
import { bytes, count, duration, metric, percent, rate, words } from "./format.js";
import { done, hasTrained, isUnderWay, mainMetric, note, secondsLeft } from "./jobs.js";

/** The daemon and its host in a few figures. */
export function tiles({ snapshot }, jobs) {
  const { host, process } = snapshot;
  const number = (state) => jobs.filter((job) => job.state === state).length;
  const total = jobs
    .filter((job) => job.state === "running")
    .reduce((sum, job) => sum + job.progress.examples_per_second, 0);
  const states = [
    [number("preparing"), "preparing"],
    [snapshot.queued_jobs, "queued"],
    [snapshot.held_jobs, "held"],
  ]
    .filter(([count]) => count > 0)
    .map(([count, state]) => `${count} ${state}`);
  const tile = (title, value, below, part = null) =>
    element(
      "div",
      { class: "tile" },
      element("h2", {}, title),
      element("p", {}, value),
      part,
      element("small", {}, below),
    );
  const shown = [
    tile("Jobs running", String(number("running")), states.join(", ") || "none waits"),
    tile("Training rate", `${rate(total)} rows/s`, "of all jobs"),
    tile(
      "Load",
      host.load.length > 0 ? host.load[0].toFixed(1) : "-",
      `of ${host.cores} cores, over a minute`,
      host.load.length > 0 ? bar(host.load[0] / host.cores, "load") : null,
    ),
  ];
  if (host.memory_bytes && host.available_bytes !== null) {
    const used = host.memory_bytes - host.available_bytes;
    shown.push(
      tile("Memory", bytes(used), `of ${bytes(host.memory_bytes)} in use`, bar(used / host.memory_bytes, "memory")),
    );
  }
  const own = process ? `, ${bytes(process.resident_bytes)}` : "";
  const age = duration((snapshot.at_ms - snapshot.started_ms) / 1000);
  shown.push(tile("Daemon", snapshot.is_stopping ? "stopping" : `up ${age}`, `version ${snapshot.version}${own}`));
  return shown;
}

/** The columns of the table: title, whether it has numbers, and what it shows of a job. */
const columns = (rates) => [
  ["State", false, (job) => badge(job.state)],
  ["Job", false, (job) => [element("a", { href: `#${job.id}` }, job.id), why(note(job))]],
  ["Owner", false, (job) => job.owner],
  ["Progress", false, (job) => progress(hasTrained(job) ? done(job) : null)],
  ["Rows/s", true, (job) => (hasTrained(job) ? rate(job.progress.examples_per_second) : null)],
  ["", false, (job) => (isUnderWay(job) && rates.has(job.id) ? sparkline(rates.get(job.id)) : null)],
  ["Loss", true, (job) => (hasTrained(job) ? metric(job.progress.loss) : null)],
  ["Evaluation", false, (job) => evaluation(mainMetric(job))],
  ["Input wait", true, (job) => (isTraining(job) ? percent(job.progress.input_wait_fraction) : null)],
  ["Bottleneck", false, (job) => (isTraining(job) ? job.activity?.ingest?.recent?.bound : null)],
  ["Time left", true, (job) => left(secondsLeft(job))],
];

const isTraining = (job) => job.state === "running" && hasTrained(job);
const why = (text) => (text === "" ? null : element("small", { class: "why", title: text }, text));
const evaluation = (main) => (main ? `${words(main[0])} ${metric(main[1])}` : null);
const left = (seconds) => (seconds === null ? null : duration(seconds));

const progress = (fraction) =>
  fraction === null
    ? null
    : [bar(fraction, percent(fraction)), element("small", {}, `${Math.floor(fraction * 100)} %`)];

/** The jobs that match all words of `filter`. */
function matching(jobs, filter) {
  const wanted = filter.toLowerCase().split(/\s+/);
  const text = (job) => [job.id, job.name, job.owner ?? "", job.state].join(" ").toLowerCase();
  return jobs.filter((job) => wanted.every((word) => text(job).includes(word)));
}

/** The table of jobs. `rates` has the last training rates by job, and `omitted` is the number of jobs that are not listed. */
export function table(jobs, rates, { omitted, filter }) {
  const shown = matching(jobs, filter);
  if (jobs.length === 0)
    return element(
      "p",
      { class: "empty" },
      "No jobs yet. ",
      element("code", {}, "millstream submit job.toml"),
      " starts one.",
    );
  if (shown.length === 0) return element("p", { class: "empty" }, "No job matches.");
  const all = columns(rates);
  const kind = (isNumber) => ({ class: isNumber ? "number" : null });
  const head = all.map(([title, isNumber]) => element("th", { scope: "col", ...kind(isNumber) }, title));
  const row = (job) => all.map(([, isNumber, content]) => element("td", kind(isNumber), content(job)));
  const rows = shown.map((job) => element("tr", {}, row(job)));
  const older = `and ${count(omitted)} older; \`millstream list -n 0\` lists all`;
  return element(
    "div",
    { class: "scroll" },
    element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows)),
    omitted > 0 ? element("p", { class: "empty" }, older) : null,
  );
}
