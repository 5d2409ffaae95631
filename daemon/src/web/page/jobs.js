// The daemon's jobs, from its documents: which there are, in which order, and what follows from their numbers.

/** The jobs, with what only those under way have: first these, then waiting ones, then ended ones, each the newest first. */
export function jobsOf({ snapshot, jobs }, earlier) {
  const active = new Map(snapshot.jobs.map((activity) => [activity.job.id, activity]));
  const listed = new Set(jobs.map((job) => job.id));
  const unlisted = snapshot.jobs.map((activity) => activity.job).filter((job) => !listed.has(job.id));
  const all = [...unlisted, ...jobs].map((job) => {
    const activity = active.get(job.id);
    return { ...job, ...activity?.job, activity, cores: coresOf(activity, snapshot, earlier) };
  });
  return all.sort((one, other) => rank(one) - rank(other) || other.created_ms - one.created_ms);
}

const RANKS = { running: 0, preparing: 0, queued: 1, held: 2, paused: 2 };
const rank = (job) => RANKS[job.state] ?? 3;

export const isUnderWay = (job) => rank(job) === 0;

export const hasTrained = (job) => (job.progress?.step ?? 0) > 0;

/** The cores that a job's worker kept busy since the overview before, if it was the same worker. */
function coresOf(activity, snapshot, earlier) {
  const before = earlier?.snapshot.jobs.find((other) => other.job.id === activity?.job.id);
  const [now, then] = [activity?.worker, before?.worker];
  const seconds = (snapshot.at_ms - (earlier?.snapshot.at_ms ?? snapshot.at_ms)) / 1000;
  if (!now || !then || now.pid !== then.pid || seconds <= 0) return null;
  return (now.cpu_seconds - then.cpu_seconds) / seconds;
}

/** The fraction of the job that is done; null while unknown. */
export function done(job) {
  const { step, total_steps: total } = job.progress ?? {};
  return total > 0 ? Math.min(step / total, 1) : null;
}

/** The seconds until the end of training at the present rate; null while unknown. */
export function secondsLeft(job) {
  const { step, total_steps: total, examples, examples_per_second: rate } = job.progress ?? {};
  if (job.state !== "running" || !(total > 0) || !(step > 0) || !(rate > 0)) return null;
  return (Math.max(total - step, 0) * (examples / step)) / rate;
}

/** How long the job has run, or ran, in seconds. */
export function secondsRun(job, now) {
  return job.started_ms ? ((job.ended_ms ?? now) - job.started_ms) / 1000 : null;
}

/** Why the job is in its state, in the daemon's words. */
export const note = (job) => job.waits_for ?? job.reason ?? "";

/** The main metric of the last evaluation as [name, value]: of the first label, if there are several. */
export function mainMetric(job) {
  const [first] = Object.entries(job.eval ?? {});
  if (!first) return null;
  return typeof first[1] === "object" && first[1] !== null ? Object.entries(first[1])[0] : first;
}

/** The metrics of an evaluation or of its labels as [name, value], with the label before the name. */
export function flatMetrics(metrics) {
  return Object.entries(metrics ?? {}).flatMap(([name, value]) =>
    typeof value === "object" && value !== null
      ? Object.entries(value).map(([inner, value]) => [`${name}/${inner}`, value])
      : [[name, value]],
  );
}

/** The evaluation metrics that are the training loss of some kind of label. */
const LOSS_METRICS = ["log_loss", "huber_loss", "pinball_loss", "poisson_deviance"];

/** The curves of a job's document. The main ones are the training loss, with the held-out loss, and the rate; the others are
 * each metric, the most informative first, and the input wait. */
export function curvesOf({ job, points, evaluations }) {
  const over = (field, scale = 1) =>
    points.map((point) => [point.step, point[field] === null ? NaN : point[field] * scale]);
  const loss = { name: "training loss", points: over("loss") };
  // The job has its metrics in their order.
  const metrics = new Map(flatMetrics(job.eval).map(([name]) => [name, []]));
  for (const evaluation of evaluations) {
    for (const [name, value] of flatMetrics(evaluation.metrics)) {
      if (!metrics.has(name)) metrics.set(name, []);
      metrics.get(name).push([evaluation.step, value ?? NaN]);
    }
  }
  const others = [];
  for (const [name, points] of metrics) {
    const title = `held-out ${name.replaceAll("_", " ")}`;
    if (!loss.marks && LOSS_METRICS.includes(name)) loss.marks = { name: title, points };
    else others.push({ name: title, points });
  }
  others.push({ name: "waiting for input, %", points: over("input_wait_fraction", 100), fromZero: true });
  const rate = { name: "rows per second", points: over("examples_per_second"), fromZero: true };
  const drawable = (curve) => curve.points.some(([, value]) => Number.isFinite(value));
  return { main: [loss, rate].filter(drawable), others: others.filter(drawable) };
}
