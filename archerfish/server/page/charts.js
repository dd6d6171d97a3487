// Owns the charts over time and over steps. Knows nothing of the service: it is handed plain numbers.

import { Surface, color, gridY, label, line, mark, roundUp } from "./canvas.js";
import { span } from "./format.js";

const LEFT = 50;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;
const BETWEEN = 16;
// Snapshots come each second; a longer silence is a gap, and no line is drawn across it.
const GAP_S = 3.5;
const SHORTEST_S = 60;
const LABEL_PX = 76;

/** The boxes of panels above each other, which share the axis below them; `shares` are their heights. */
function panelBoxes(width, height, shares) {
  const room = height - TOP - BOTTOM - BETWEEN * (shares.length - 1);
  let top = TOP;
  return shares.map((share) => {
    const box = { left: LEFT, right: width - RIGHT, top, bottom: top + room * share };
    top = box.bottom + BETWEEN;
    return box;
  });
}

/** Lines over the last minutes. A panel is {tick, least, series: [{value, ink, dash, width, fill}]}. */
export class TimeChart {
  #surface;
  #panels;
  #longest;
  #samples = [];
  #onPoint;

  /** `onPoint(sample, agoSeconds)` hears which sample is to be read out: the one pointed at, or else the newest. */
  constructor(canvas, panels, longest, onPoint) {
    this.#panels = panels;
    this.#longest = longest;
    this.#onPoint = onPoint;
    this.#surface = new Surface(canvas, (...args) => this.#paint(...args));
  }

  /** Samples are {time, ...} in order of time. */
  show(samples, description) {
    this.#samples = samples;
    this.#surface.describe(description);
    this.#surface.repaint();
  }

  #paint(context, width, height, pointer) {
    const samples = this.#samples;
    if (!samples.length) return;
    const now = samples.at(-1).time;
    const seconds = Math.min(this.#longest, Math.max(SHORTEST_S, now - samples[0].time));
    const boxes = panelBoxes(
      width,
      height,
      this.#panels.map(() => 1 / this.#panels.length),
    );
    const x = (time) => boxes[0].right - ((now - time) / seconds) * (boxes[0].right - boxes[0].left);
    const pointed = pointer && nearest(samples, (sample) => x(sample.time), pointer.x);

    this.#timeAxis(context, boxes.at(-1), seconds);
    this.#panels.forEach((panel, i) => this.#paintPanel(context, boxes[i], panel, x, pointed));
    const read = pointed ?? samples.at(-1);
    this.#onPoint(read, pointed ? now - read.time : 0);
  }

  #timeAxis(context, box, seconds) {
    const width = box.right - box.left;
    const every = [15, 30, 60, 120, 300].find((step) => (step / seconds) * width >= LABEL_PX) ?? seconds;
    const y = box.bottom + 12;
    label(context, "now", box.right, y, { align: "right" });
    for (let back = every; back <= seconds; back += every) {
      const x = Math.round(box.right - (back / seconds) * width) + 0.5;
      line(context, x, box.bottom, x, box.bottom + 4, { ink: "line-strong" });
      const last = back + every > seconds;
      label(context, last ? `${span(back)} ago` : span(back), x, y, {
        align: last && x < box.left + 24 ? "left" : "center",
      });
    }
  }

  #paintPanel(context, box, panel, x, pointed) {
    let top = panel.least;
    for (const sample of this.#samples) {
      for (const series of panel.series) top = Math.max(top, series.value(sample) ?? 0);
    }
    top = roundUp(top);
    const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
    gridY(context, box, top, panel.tick);
    if (pointed) {
      const at = Math.round(x(pointed.time)) + 0.5;
      line(context, at, box.top, at, box.bottom, { ink: "ink-2" });
    }
    for (const series of panel.series) {
      for (const run of runs(this.#samples, series.value)) drawRun(context, run, series, x, y, box.bottom);
      const read = pointed ?? this.#samples.at(-1);
      const value = series.value(read);
      if (value != null) mark(context, x(read.time), y(value), 3, series.ink);
    }
  }
}

/** Stretches of samples without a missing value or a gap in time between them, as {time, value}. */
function runs(samples, valueOf) {
  const found = [];
  let before = -Infinity;
  for (const sample of samples) {
    const value = valueOf(sample);
    if (value == null) {
      before = -Infinity;
      continue;
    }
    if (sample.time - before > GAP_S) found.push([]);
    found.at(-1).push({ time: sample.time, value });
    before = sample.time;
  }
  return found;
}

function drawRun(context, run, series, x, y, floor) {
  context.beginPath();
  for (const { time, value } of run) context.lineTo(x(time), y(value));
  context.strokeStyle = color(series.ink);
  context.lineWidth = series.width ?? 1.75;
  context.setLineDash(series.dash ?? []);
  context.stroke();
  context.setLineDash([]);
  if (!series.fill) return;
  context.lineTo(x(run.at(-1).time), floor);
  context.lineTo(x(run[0].time), floor);
  context.globalAlpha = 0.14;
  context.fillStyle = color(series.ink);
  context.fill();
  context.globalAlpha = 1;
}

function nearest(items, xOf, at) {
  let best = items[0];
  for (const item of items) if (Math.abs(xOf(item) - at) < Math.abs(xOf(best) - at)) best = item;
  return best;
}

/** Bars of the last steps, newest at the right: what each held above, how long it took below. */
export class StepChart {
  #surface;
  #parts;
  #numSteps;
  #tokens;
  #time;
  #steps = [];
  #onPoint;

  /** `parts` are [{key, ink}], stacked from the bottom; `tokens` and `time` are {tick, least} of the two axes. */
  constructor(canvas, { parts, numSteps, tokens, time }, onPoint) {
    this.#parts = parts;
    this.#numSteps = numSteps;
    this.#tokens = tokens;
    this.#time = time;
    this.#onPoint = onPoint;
    this.#surface = new Surface(canvas, (...args) => this.#paint(...args));
  }

  show(steps, description) {
    this.#steps = steps.slice(-this.#numSteps);
    this.#surface.describe(description);
    this.#surface.repaint();
  }

  #paint(context, width, height, pointer) {
    const steps = this.#steps;
    if (!steps.length) return;
    const [held, took] = panelBoxes(width, height, [0.66, 0.34]);
    const slot = (held.right - held.left) / this.#numSteps;
    const left = (i) => held.right - (steps.length - i) * slot;
    const pointed = pointer && nearest([...steps.keys()], (i) => left(i) + slot / 2, pointer.x);
    if (pointed !== null) {
      context.fillStyle = color("hover");
      context.fillRect(left(pointed), held.top, slot, took.bottom - held.top);
    }
    const bar = Math.max(1, slot - Math.max(1, slot * 0.22));
    this.#paintTokens(context, held, left, bar);
    this.#paintTime(context, took, left, bar);
    label(context, `${this.#numSteps} steps ago`, took.left, took.bottom + 12);
    label(context, "last", took.right, took.bottom + 12, { align: "right" });
    const read = pointed ?? steps.length - 1;
    this.#onPoint(steps[read], steps.length - 1 - read);
  }

  #paintTokens(context, box, left, bar) {
    const total = (step) => this.#parts.reduce((sum, part) => sum + step[part.key], 0);
    const top = roundUp(Math.max(this.#tokens.least, ...this.#steps.map(total)));
    gridY(context, box, top, this.#tokens.tick);
    const scale = (box.bottom - box.top) / top;
    this.#steps.forEach((step, i) => {
      let y = box.bottom;
      for (const { key, ink } of this.#parts) {
        if (!step[key]) continue;
        context.fillStyle = color(ink);
        context.fillRect(left(i), y - step[key] * scale, bar, step[key] * scale);
        y -= step[key] * scale;
      }
    });
  }

  #paintTime(context, box, left, bar) {
    const top = roundUp(Math.max(this.#time.least, ...this.#steps.map((step) => step.ms)));
    gridY(context, box, top, this.#time.tick);
    const scale = (box.bottom - box.top) / top;
    context.fillStyle = color("time");
    this.#steps.forEach((step, i) => context.fillRect(left(i), box.bottom - step.ms * scale, bar, step.ms * scale));
  }
}
