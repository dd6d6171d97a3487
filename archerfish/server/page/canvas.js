// Owns drawing surfaces: sharp canvases, the theme's colors, axes, the pointer. Knows nothing of what is drawn.

const surfaces = new Set();
const cache = new Map();

/** A color of the style sheet, by the name of its custom property. */
export function color(name) {
  if (!cache.has(name)) {
    cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  }
  return cache.get(name);
}

function themeChanged() {
  cache.clear();
  for (const surface of surfaces) surface.repaint();
}
for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
  matchMedia(query).addEventListener("change", themeChanged);
}

/** A canvas that repaints itself when its size, its theme or the pointer over it changes. */
export class Surface {
  #canvas;
  #paint;
  #pointer = null;
  #frame = null;

  /** `paint(context, width, height, pointer)` draws in CSS pixels; pointer is {x, y} or null. */
  constructor(canvas, paint) {
    this.#canvas = canvas;
    this.#paint = paint;
    surfaces.add(this);
    new ResizeObserver(() => this.repaint()).observe(canvas);
    for (const type of ["pointermove", "pointerdown"]) {
      canvas.addEventListener(type, (event) => this.#point({ x: event.offsetX, y: event.offsetY }));
    }
    for (const type of ["pointerleave", "pointercancel"]) canvas.addEventListener(type, () => this.#point(null));
  }

  describe(text) {
    this.#canvas.setAttribute("aria-label", text);
  }

  /** Draws with the next frame, once, however often it is called until then. */
  repaint() {
    this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  #point(pointer) {
    this.#pointer = pointer;
    this.repaint();
  }

  #draw() {
    this.#frame = null;
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    const context = this.#canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = `11px ${getComputedStyle(this.#canvas).fontFamily}`;
    context.lineJoin = "round";
    this.#paint(context, width, height, this.#pointer);
  }
}

/** The next number that is round and has a round half, so that both can be written on an axis. */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 2.4, 3, 4, 6, 8, 10].find((step) => step * power >= value * (1 - 1e-9)) * power;
}

/** Text beside a point; `align` as in canvas, `y` the middle of the line. */
export function label(context, text, x, y, { align = "left", ink = "ink-2", weight = "" } = {}) {
  const font = context.font;
  if (weight) context.font = `${weight} ${font}`;
  context.fillStyle = color(ink);
  context.textAlign = align;
  context.textBaseline = "middle";
  context.fillText(text, x, y);
  context.font = font;
}

export function line(context, x0, y0, x1, y1, { ink = "line", width = 1, dash = [] } = {}) {
  context.strokeStyle = color(ink);
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
  context.setLineDash([]);
}

/** Horizontal lines at zero, half and top of a box, each with its value at the left. */
export function gridY(context, box, top, text) {
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(box.bottom - part * (box.bottom - box.top)) + 0.5;
    line(context, box.left, y, box.right, y, { ink: part ? "line" : "line-strong" });
    label(context, text(top * part), box.left - 6, y, { align: "right" });
  }
}

/** A circle or diamond around a point, filled. */
export function mark(context, x, y, size, ink, shape = "dot") {
  context.fillStyle = color(ink);
  context.beginPath();
  if (shape === "diamond") {
    context.moveTo(x, y - 1.3 * size);
    context.lineTo(x + 1.3 * size, y);
    context.lineTo(x, y + 1.3 * size);
    context.lineTo(x - 1.3 * size, y);
    context.closePath();
  } else {
    context.arc(x, y, size, 0, 2 * Math.PI);
  }
  context.fill();
}
