// Curves over the steps of a job, as SVG.

import { element, svg } from "./element.js";
import { count, figure } from "./format.js";

const HEIGHT = 190;
const LEFT = 64;
const RIGHT = 12;
const TOP = 8;
const BOTTOM = 24;

/** Curves of more points are drawn without their first fiftieth: the loss falls steeply at first, which would flatten the
 * rest. So many marks are drawn small. */
const MANY_POINTS = 100;
const START_SHARE = 50;

/** At most `wanted` + 1 round numbers within `low` and `high`, each with its text. */
export function ticks(low, high, wanted) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / wanted));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => span / step <= wanted);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const text = (value) =>
    value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  const found = [];
  for (let index = Math.ceil(low / step); index * step <= high + step * 1e-9; index += 1)
    found.push([index * step, text(index * step)]);
  return found;
}

/** The range of the values; `fromZero` for rates. */
function range(values, fromZero) {
  let low = fromZero ? 0 : Math.min(...values);
  let high = Math.max(...values);
  const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  // No value is negative if none has been.
  if (!fromZero) low = low >= 0 ? Math.max(low - margin, 0) : low - margin;
  high += margin;
  return [low, high];
}

/** `points` without those that have no value, as [step, value]. */
const defined = (points) => points.filter(([, value]) => Number.isFinite(value));

function withoutStart(points) {
  return points.length > MANY_POINTS ? points.slice(Math.floor(points.length / START_SHARE)) : points;
}

function summary(points) {
  const values = points.map(([, value]) => value);
  const last = values.at(-1);
  return `last ${figure(last)}, min ${figure(Math.min(...values))}, max ${figure(Math.max(...values))}`;
}

/** The point of `points`, which are in the order of their steps, whose step is closest to `step`. */
function closest(points, step) {
  const better = (best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best);
  return points.reduce(better);
}

/**
 * A curve with its title, axes and a cursor that reads values.
 *
 * @param curve its `name` and `points`, which are [step, value]; `marks`, a name and points that are drawn as dots;
 *   `fromZero`, whether its axis has the zero
 * @param {number} width in pixels
 */
export function chart(curve, width) {
  const points = curve.fromZero ? defined(curve.points) : withoutStart(defined(curve.points));
  const first = points[0]?.[0] ?? 0;
  const marks = defined(curve.marks?.points ?? []).filter(([step]) => step >= first);
  const all = [...points, ...marks];
  const figureElement = element("figure", { class: "chart" });
  if (all.length === 0) return figureElement;

  const [low, high] = range(
    all.map(([, value]) => value),
    curve.fromZero,
  );
  const lastStep = Math.max(...all.map(([step]) => step), 1);
  const right = width - RIGHT;
  const bottom = HEIGHT - BOTTOM;
  const x = (step) => LEFT + (step / lastStep) * (right - LEFT);
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - TOP);
  const path = (points) =>
    points.map(([step, value], nth) => `${nth ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");

  const drawn = svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`,
    width,
    height: HEIGHT,
    role: "img",
    "aria-label": `${curve.name}: ${summary(all)}`,
  });
  for (const [value, text] of ticks(low, high, 4)) {
    drawn.append(
      svg("line", { class: "grid", x1: LEFT, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, text),
    );
  }
  for (const [step, text] of ticks(0, lastStep, Math.max(2, Math.floor(width / 90)))) {
    const anchor = step === 0 ? "start" : x(step) > right - 20 ? "end" : "middle";
    drawn.append(svg("text", { x: x(step), y: HEIGHT - 6, "text-anchor": anchor }, text));
  }
  drawn.append(svg("path", { class: "curve", d: path(points) }));
  for (const [step, value] of marks)
    drawn.append(svg("circle", { class: "mark", cx: x(step), cy: y(value), r: marks.length > MANY_POINTS ? 1.5 : 3 }));

  const title = element("span", { class: "summary" }, summary(points.length > 0 ? points : marks));
  addCursor(drawn, title, { points, marks, curve, x, y, lastStep, right, bottom });
  const key = curve.marks && marks.length > 0 ? element("span", { class: "key" }, `● ${curve.marks.name}`) : null;
  figureElement.append(element("figcaption", {}, element("b", {}, curve.name), key, title), drawn);
  return figureElement;
}

/** Shows the values beside the pointer in place of the summary. */
function addCursor(drawn, title, { points, marks, curve, x, y, lastStep, right, bottom }) {
  const line = svg("line", { class: "cursor", y1: TOP, y2: bottom, visibility: "hidden" });
  const dot = svg("circle", { class: "cursor", r: 3.5, visibility: "hidden" });
  drawn.append(line, dot);
  const usual = title.textContent;
  const readable = points.length > 0 ? points : marks;
  drawn.addEventListener("pointermove", (event) => {
    const at = event.clientX - drawn.getBoundingClientRect().left;
    const [step, value] = closest(readable, ((at - LEFT) / (right - LEFT)) * lastStep);
    const set = (shape, attributes) =>
      Object.entries(attributes).forEach(([name, value]) => shape.setAttribute(name, value));
    set(line, { x1: x(step), x2: x(step), visibility: "visible" });
    set(dot, { cx: x(step), cy: y(value), visibility: "visible" });
    const mark = points.length > 0 && marks.length > 0 ? closest(marks, step) : null;
    const beside = mark ? `, ${curve.marks.name} ${figure(mark[1])} at ${count(mark[0])}` : "";
    title.textContent = `step ${count(step)}: ${figure(value)}${beside}`;
  });
  drawn.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    dot.setAttribute("visibility", "hidden");
    title.textContent = usual;
  });
}

/** A small curve of the last values, without axes. */
export function sparkline(values) {
  const [width, height] = [72, 18];
  const highest = Math.max(...values, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  const points = values.map(
    (value, nth) => `${(nth * step).toFixed(1)},${(height - 1 - (value / highest) * (height - 2)).toFixed(1)}`,
  );
  const drawn = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  drawn.append(svg("polyline", { points: points.join(" ") }));
  return drawn;
}
