// The page: asks the daemon for its documents, and shows those of the job that the address names, or all jobs.

import { element } from "./element.js";
import * as gpus from "./gpus.js";
import { curvesOf, isUnderWay, jobsOf } from "./jobs.js";
import * as jobPage from "./job_page.js";
import * as overview from "./overview.js";

const INTERVAL_MS = 2000;

/** The number of rates that a sparkline shows. */
const RATES = 30;

const state = {
  overview: null,
  earlier: null,
  /** The document of the job that is shown. */
  document: null,
  rates: new Map(),
  asking: false,
};

const byId = (id) => document.getElementById(id);
const chosen = () => decodeURIComponent(location.hash.slice(1));

async function ask(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(10_000) });
  if (response.ok) return response.json();
  const text = (await response.text()).trim();
  if (response.status === 403)
    throw new Error("The daemon has been restarted: `millstream web` prints the page's new address.");
  if (response.status === 404) throw new Error(text);
  throw new Error(`The daemon cannot answer: ${text}`);
}

/** Asks for what is shown, one request after another. */
async function refresh() {
  if (state.asking || document.hidden) return;
  state.asking = true;
  const id = chosen();
  try {
    [state.earlier, state.overview] = [state.overview, await ask("/api/overview")];
    keepRates(state.overview.snapshot);
    if (id !== "" && needsDocument(id)) state.document = await ask(`/api/jobs/${encodeURIComponent(id)}`);
    // An id may be shortened.
    if (id !== "" && state.document.job.id.startsWith(id)) location.hash = state.document.job.id;
    problem(null);
  } catch (error) {
    const isNetwork = error instanceof TypeError || error.name === "TimeoutError";
    problem(isNetwork ? "The daemon does not answer. What is shown may be old." : error.message);
  } finally {
    state.asking = false;
  }
  show();
  // The address has changed meanwhile.
  if (chosen() !== id) refresh();
}

/** The document of a job that has ended changes no more, unless the job is resumed. */
function needsDocument(id) {
  const known = state.document?.job;
  if (!known || known.id !== id) return true;
  const job = jobsOf(state.overview, state.earlier).find((job) => job.id === id);
  return !job || isUnderWay(job) || job.state !== known.state;
}

function keepRates({ jobs }) {
  const rates = new Map();
  for (const { job } of jobs) {
    rates.set(job.id, [...(state.rates.get(job.id) ?? []), job.progress?.examples_per_second ?? 0].slice(-RATES));
  }
  state.rates = rates;
}

function problem(text) {
  byId("problem").hidden = text === null;
  byId("problem").textContent = text ?? "";
  byId("link").textContent = text === null ? "live" : "problem";
  byId("link").className = text === null ? "live" : "lost";
}

/** Parts of the page by name, each with the values that it was made of. A part is made again only when these change, so that
 * a selection and a cursor in it stay. */
const parts = new Map();

function part(name, values, make) {
  const key = JSON.stringify(values);
  if (parts.get(name)?.key !== key) parts.set(name, { key, made: make() });
  return parts.get(name).made;
}

/** Makes `children` those of `parent`. One that is there already is not moved, so that it keeps its scroll position. */
function place(parent, children) {
  children.forEach((child, nth) => {
    const present = parent.children[nth];
    if (!present) parent.append(child);
    else if (present !== child) present.replaceWith(child);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

function show() {
  if (!state.overview) return;
  const { snapshot, omitted } = state.overview;
  const jobs = jobsOf(state.overview, state.earlier);
  byId("host").textContent = snapshot.host.name;
  byId("tiles").replaceChildren(...overview.tiles(state.overview, jobs));
  const id = chosen();
  byId("filter").hidden = id !== "";
  document.title = `${id === "" ? "Jobs" : id} · ${snapshot.host.name} · Millstream`;
  if (id === "") {
    const filter = byId("filter").value;
    const sections = [
      snapshot.gpus
        ? part("gpus", [snapshot.gpus, snapshot.gpus.problem && snapshot.at_ms], () => gpus.table(snapshot))
        : null,
      part("table", [jobs, omitted, filter], () => overview.table(jobs, state.rates, { omitted, filter })),
    ];
    place(
      byId("view"),
      sections.filter((section) => section !== null),
    );
    return;
  }
  const shown = state.document;
  if (!shown || shown.job.id !== id) {
    place(byId("view"), [element("p", { class: "empty" }, element("a", { href: "#" }, "← all jobs"))]);
    return;
  }
  const job = { ...shown.job, ...jobs.find((job) => job.id === id), best_checkpoint: shown.job.best_checkpoint };
  job.gpuUse = gpus.ofJob(snapshot.gpus, id);
  showJob(job, shown, snapshot.at_ms);
}

function showJob(job, shown, now) {
  const width = Math.max(Math.min(byId("view").clientWidth, 1600), 280);
  const explanation = job.state === "running" ? job.activity?.ingest : null;
  const scrolled = document.querySelector(".log");
  const atEnd = !scrolled || scrolled.scrollTop + scrolled.clientHeight >= scrolled.scrollHeight - 4;
  const { main, others } = curvesOf({ ...shown, job });
  const sections = [
    part("facts", [job, isUnderWay(job) ? now : null], () => jobPage.facts(job, now)),
    part("main", [job.id, main, width], () => jobPage.charts(main, width)),
    explanation ? part("ingest", [job.id, explanation], () => jobPage.ingest(explanation)) : null,
    part("others", [job.id, others, width], () => jobPage.charts(others, width)),
    part("log", [job.id, shown.log], () => jobPage.log(shown.log)),
  ];
  place(
    byId("view"),
    sections.filter((section) => section !== null),
  );
  const log = document.querySelector(".log");
  if (log && log !== scrolled && atEnd) log.scrollTop = log.scrollHeight;
}

addEventListener("hashchange", () => {
  parts.clear();
  state.document = null;
  show();
  scrollTo(0, 0);
  refresh();
});
addEventListener("resize", show);
document.addEventListener("visibilitychange", refresh);
byId("filter").addEventListener("input", show);
setInterval(refresh, INTERVAL_MS);
refresh();
