// Values as text, written as the command line writes them.

export const count = (number) => Math.round(number).toLocaleString("en-US");

/** A rate per second, or a dash. */
export function rate(number) {
  if (!Number.isFinite(number) || number < 0) return "-";
  return number >= 100 ? count(number) : number.toFixed(1);
}

/** `1536` as `1.5 KiB`. */
export function bytes(number) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${number} bytes` : `${number.toFixed(1)} ${units[unit]}`;
}

/** `0.0312` as `3.1 %`. */
export const percent = (fraction) => (Number.isFinite(fraction) ? `${(fraction * 100).toFixed(1)} %` : "-");

/** A metric or a loss: four decimals, or a dash when it is not defined. */
export const metric = (number) => (Number.isFinite(number) ? number.toFixed(4) : "-");

/** A number on an axis or in a summary, with the digits that matter. */
export const figure = (number) => (Math.abs(number) >= 1000 ? count(number) : metric(number));

/** `log_loss` as `log loss`. */
export const words = (name) => name.replaceAll("_", " ");

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "-";
  const two = (number) => String(number).padStart(2, "0");
  const whole = Math.floor(seconds);
  const [days, hours, minutes] = [86400, 3600, 60].map((unit) => Math.floor(whole / unit));
  if (days > 0) return `${days}d ${two(hours % 24)}h`;
  if (hours > 0) return `${hours}h ${two(minutes % 60)}m`;
  if (minutes > 0) return `${minutes}m ${two(whole % 60)}s`;
  return seconds < 10 ? `${seconds.toFixed(1)}s` : `${whole}s`;
}

/** Milliseconds since the Unix epoch as `2026-11-21 08:07:00Z`. */
export const moment = (ms) =>
  new Date(ms)
    .toISOString()
    .replace("T", " ")
    .replace(/\.\d+Z/, "Z");
