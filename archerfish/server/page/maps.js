// Owns the map of cache blocks and the roofline. Knows nothing of the service: it is handed plain numbers.

import { Surface, color, label, line, mark } from "./canvas.js";
import { prefixed } from "./format.js";

const SMALLEST_CELL = 4;
const LARGEST_CELL = 18;

/** A square for each block of the cache, or for a few blocks where there are too many to see. */
export class BlockMap {
  #surface;
  #inks;
  #states = new Uint8Array();
  #onPoint;

  /** `inks[state]` colors a block; `onPoint(index, blocksPerCell)` hears the first block pointed at, or null. */
  constructor(canvas, inks, onPoint) {
    this.#inks = inks;
    this.#onPoint = onPoint;
    this.#surface = new Surface(canvas, (...args) => this.#paint(...args));
  }

  /** One state a block. */
  show(states, description) {
    this.#states = states;
    this.#surface.describe(description);
    this.#surface.repaint();
  }

  #paint(context, width, height, pointer) {
    const states = this.#states;
    if (!states.length) return;
    const { cell, columns, group } = layout(states.length, width, height);
    const gap = cell >= 7 ? 2 : 1;
    for (let i = 0, first = 0; first < states.length; i += 1, first += group) {
      const x = (i % columns) * cell;
      const y = Math.floor(i / columns) * cell;
      this.#paintCell(context, states.subarray(first, first + group), x, y, cell - gap);
    }
    this.#point(context, pointer, { cell, columns, group });
  }

  /** Each state is laid over the lower ones as strongly as its share of the cell. */
  #paintCell(context, states, x, y, size) {
    context.fillStyle = color(this.#inks[0]);
    context.fillRect(x, y, size, size);
    for (let state = 1; state < this.#inks.length; state += 1) {
      let atLeast = 0;
      let exactly = 0;
      for (const value of states) {
        if (value >= state) atLeast += 1;
        if (value === state) exactly += 1;
      }
      if (!exactly) continue;
      context.globalAlpha = atLeast / states.length;
      context.fillStyle = color(this.#inks[state]);
      context.fillRect(x, y, size, size);
      context.globalAlpha = 1;
    }
  }

  #point(context, pointer, { cell, columns, group }) {
    const column = pointer && Math.floor(pointer.x / cell);
    const index = pointer && (Math.floor(pointer.y / cell) * columns + column) * group;
    if (pointer === null || column >= columns || index < 0 || index >= this.#states.length) {
      this.#onPoint(null, group);
      return;
    }
    context.strokeStyle = color("ink");
    context.lineWidth = 1.5;
    context.strokeRect(column * cell - 0.5, Math.floor(pointer.y / cell) * cell - 0.5, cell, cell);
    this.#onPoint(index, group);
  }
}

/** The largest cells with which all blocks fit, and how many blocks share one. */
function layout(numBlocks, width, height) {
  for (let cell = LARGEST_CELL; cell >= SMALLEST_CELL; cell -= 1) {
    const columns = Math.floor(width / cell);
    if (columns * Math.floor(height / cell) >= numBlocks) return { cell, columns, group: 1 };
  }
  const columns = Math.floor(width / SMALLEST_CELL);
  const cells = columns * Math.floor(height / SMALLEST_CELL);
  return { cell: SMALLEST_CELL, columns, group: Math.ceil(numBlocks / cells) };
}

const AXES = { left: 62, right: 12, top: 10, bottom: 34 };

/** Steps under the machine's roof, both axes logarithmic. */
export class Roofline {
  #surface;
  #phases;
  #data = { peakFlops: null, peakBandwidth: null, points: [] };
  #onPoint;

  /** `phases` are {phase: {ink, shape}}; `onPoint(point)` hears the point that is pointed at, or null. */
  constructor(canvas, phases, onPoint) {
    this.#phases = phases;
    this.#onPoint = onPoint;
    this.#surface = new Surface(canvas, (...args) => this.#paint(...args));
  }

  /** {peakFlops, peakBandwidth, points: [{phase, intensity, flops}]}; peaks may be null. */
  show(data, description) {
    const drawable = (point) => point.phase in this.#phases && point.intensity > 0 && point.flops > 0;
    this.#data = { ...data, points: data.points.filter(drawable) };
    this.#surface.describe(description);
    this.#surface.repaint();
  }

  #paint(context, width, height, pointer) {
    const { points, peakFlops, peakBandwidth } = this.#data;
    if (!points.length && !(peakFlops && peakBandwidth)) return;
    const box = { left: AXES.left, right: width - AXES.right, top: AXES.top, bottom: height - AXES.bottom };
    const scale = this.#scale(box);
    this.#paintAxes(context, box, scale);
    if (peakFlops && peakBandwidth) this.#paintRoof(context, box, scale);
    const pointed = pointer && this.#nearest(scale, pointer);
    context.globalAlpha = 0.55;
    for (const point of points) this.#paintPoint(context, scale, point, 3);
    context.globalAlpha = 1;
    for (const phase of Object.keys(this.#phases)) {
      const newest = points.findLast((point) => point.phase === phase);
      if (newest) this.#paintPoint(context, scale, newest, 5, "card");
    }
    if (pointed) this.#paintPoint(context, scale, pointed, 6, "ink");
    this.#onPoint(pointed);
  }

  /** Whole decades around everything that is drawn. */
  #scale(box) {
    const { points, peakFlops, peakBandwidth } = this.#data;
    // With room around each point for its mark.
    const xs = points.flatMap((point) => [point.intensity / 1.3, point.intensity * 1.3]);
    const ys = points.flatMap((point) => [point.flops / 1.3, point.flops * 1.3]);
    if (peakFlops && peakBandwidth) {
      const ridge = peakFlops / peakBandwidth;
      xs.push(ridge / 8, ridge * 8);
      ys.push(peakFlops * 1.3, peakFlops / 8);
    }
    const [x0, x1] = decades(xs);
    const [y0, y1] = decades(ys);
    return {
      x0,
      x1,
      y0,
      y1,
      x: (value) => box.left + ((Math.log10(value) - x0) / (x1 - x0)) * (box.right - box.left),
      y: (value) => box.bottom - ((Math.log10(value) - y0) / (y1 - y0)) * (box.bottom - box.top),
    };
  }

  #paintAxes(context, box, { x, y, x0, x1, y0, y1 }) {
    for (let power = x0; power <= x1; power += 1) {
      const at = Math.round(x(10 ** power)) + 0.5;
      line(context, at, box.top, at, box.bottom, { ink: power === x0 ? "line-strong" : "line" });
      const align = power === x1 ? "right" : "center";
      label(
        context,
        power < 0 ? String(10 ** power) : prefixed(10 ** power, "").replace(" ", ""),
        at,
        box.bottom + 11,
        { align },
      );
    }
    for (let power = y0; power <= y1; power += 1) {
      const at = Math.round(y(10 ** power)) + 0.5;
      line(context, box.left, at, box.right, at, { ink: power === y0 ? "line-strong" : "line" });
      label(context, prefixed(10 ** power, "FLOP/s").replace("FLOP/s", ""), box.left - 6, at, { align: "right" });
    }
    label(context, "FLOP per byte read", (box.left + box.right) / 2, box.bottom + 26, { align: "center" });
    context.save();
    context.translate(12, (box.top + box.bottom) / 2);
    context.rotate(-Math.PI / 2);
    label(context, "FLOP/s", 0, 0, { align: "center" });
    context.restore();
  }

  #paintRoof(context, box, { x, y, x0, x1, y0 }) {
    const { peakFlops, peakBandwidth } = this.#data;
    const ridge = peakFlops / peakBandwidth;
    const start = Math.max(10 ** x0, 10 ** y0 / peakBandwidth);
    context.beginPath();
    context.moveTo(x(start), y(start * peakBandwidth));
    context.lineTo(x(ridge), y(peakFlops));
    context.lineTo(x(10 ** x1), y(peakFlops));
    context.strokeStyle = color("ink");
    context.lineWidth = 2;
    context.stroke();
    context.lineTo(box.right, box.bottom);
    context.lineTo(x(start), box.bottom);
    context.globalAlpha = 0.05;
    context.fillStyle = color("ink");
    context.fill();
    context.globalAlpha = 1;
    label(context, prefixed(peakFlops, "FLOP/s"), box.right - 4, y(peakFlops) - 9, {
      align: "right",
      ink: "ink",
      weight: "600",
    });
    this.#labelSlope(context, x, y, start, ridge);
  }

  /** The bandwidth, written along the slope that it is. */
  #labelSlope(context, x, y, start, ridge) {
    const { peakBandwidth } = this.#data;
    const angle = Math.atan2(y(ridge * peakBandwidth) - y(start * peakBandwidth), x(ridge) - x(start));
    const middle = Math.sqrt(start * ridge);
    context.save();
    context.translate(x(middle), y(middle * peakBandwidth));
    context.rotate(angle);
    label(context, prefixed(peakBandwidth, "B/s"), 0, -9, { align: "center", ink: "ink", weight: "600" });
    context.restore();
  }

  #paintPoint(context, { x, y }, point, size, ring = null) {
    const { ink, shape } = this.#phases[point.phase];
    if (ring) mark(context, x(point.intensity), y(point.flops), size + 1.5, ring, shape);
    mark(context, x(point.intensity), y(point.flops), size, ink, shape);
  }

  #nearest({ x, y }, pointer) {
    const distance = (point) => Math.hypot(x(point.intensity) - pointer.x, y(point.flops) - pointer.y);
    let best = null;
    for (const point of this.#data.points) if (best === null || distance(point) < distance(best)) best = point;
    return best && distance(best) < 24 ? best : null;
  }
}

function decades(values) {
  const low = Math.floor(Math.log10(Math.min(...values)));
  return [low, Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))))];
}
