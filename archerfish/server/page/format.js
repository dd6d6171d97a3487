// Owns how numbers become text with units. Knows nothing of where they come from.

export const NONE = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 1234 -> "1,234". */
export function count(value) {
  return known(value) ? whole.format(value) : NONE;
}

/** Three digits, as many of them after the point as there is room: 0.123, 4.56, 78.9, 1,234. */
export function digits(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0 || size >= 99.95) return whole.format(value);
  return value.toFixed(size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3);
}

/** Milliseconds in the unit that reads best: 12.3 ms, 456 ms, 7.89 s, 2.1 min. */
export function milliseconds(value) {
  if (!known(value)) return NONE;
  if (value < 999.5) return `${digits(value)} ms`;
  if (value < 99_950) return `${digits(value / 1000)} s`;
  return `${digits(value / 60_000)} min`;
}

/** The same for the ticks of an axis, where round numbers stay short: 0, 50 ms, 1.5 s. */
export function millisecondsTick(value) {
  if (value === 0) return "0";
  return value < 1000 ? `${trim(value)} ms` : `${trim(value / 1000)} s`;
}

/** Round numbers of an axis: 0, 0.5, 250, 1.5k. */
export function tick(value) {
  return value < 1000 ? trim(value) : prefixed(value, "").replace(" ", "");
}

/** 3.1e11, "FLOP/s" -> "310 GFLOP/s". */
export function prefixed(value, unit) {
  if (!known(value)) return NONE;
  let power = 0;
  while (power < PREFIXES.length - 1 && Math.abs(value) >= 999.5) {
    value /= 1000;
    power += 1;
  }
  return `${trim(Number(value.toPrecision(3)))} ${PREFIXES[power]}${unit}`;
}

/** 0.4123 -> "41 %", 0.0123 -> "1.2 %", 0.0001 -> "< 0.1 %". */
export function share(value) {
  if (!known(value)) return NONE;
  const percent = value * 100;
  if (percent > 0 && percent < 0.05) return "< 0.1 %";
  return `${percent > 0 && percent < 9.95 ? percent.toFixed(1) : Math.round(percent)} %`;
}

/** Seconds as the two largest units: 45 s, 3 min 20 s, 2 h 14 min, 5 d 3 h. */
export function span(seconds) {
  if (!known(seconds)) return NONE;
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return pair(Math.floor(s / 60), "min", s % 60, "s");
  if (s < 86_400) return pair(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return pair(Math.floor(s / 86_400), "d", Math.floor((s % 86_400) / 3600), "h");
}

function pair(large, largeUnit, small, smallUnit) {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

function trim(value) {
  return String(Number(value.toFixed(3)));
}
