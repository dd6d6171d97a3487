// Owns what the live panel shows of a snapshot: tiles, charts, table, and their words. Draws nothing itself.

import { StepChart, TimeChart } from "./charts.js";
import { NONE, count, digits, milliseconds, millisecondsTick, prefixed, share, span, tick } from "./format.js";
import { BlockMap, Roofline } from "./maps.js";

const LONGEST_S = 300;
// A clock that was set back a little skips a few samples; one set back far starts the charts anew.
const CLOCK_NUDGE_S = 10;
const PERCENTILES = ["p50", "p90", "p99"];
const STATES = ["free", "cached", "in use"];
const PERCENTILE_LOOK = {
  p50: { width: 2.25, dash: [] },
  p90: { width: 1.75, dash: [6, 3] },
  p99: { width: 1.5, dash: [2, 2.5] },
};

/** One figure: its values in words, when they are from, and whether there is anything to see yet. */
class Card {
  constructor(id) {
    this.root = document.getElementById(id);
    this.canvas = this.root.querySelector("canvas");
  }

  set(name, text) {
    this.root.querySelector(`[data-value="${name}"]`).textContent = text;
  }

  when(text) {
    this.root.querySelector(".when").textContent = text;
  }

  filled(yes) {
    this.root.querySelector(".empty").hidden = yes;
    this.canvas.classList.toggle("blank", !yes);
  }
}

const ago = (seconds, unit) => (seconds > 0.5 ? `${span(seconds)} ago` : unit);

export class Board {
  #history = [];
  #tiles = document.getElementById("tiles");
  #parts = [
    tokensCard(),
    requestsCard(),
    latencyCard("ttft"),
    latencyCard("tpot"),
    blocksCard(),
    stepsCard(),
    rooflineCard(),
  ];

  show(snapshot) {
    this.#remember(snapshot);
    for (const part of this.#parts) part(snapshot, this.#history);
    this.#showTiles(snapshot);
    showTable(snapshot.latency);
  }

  /** Keeps the few numbers that are drawn over time. The service sends those of before with its first snapshot. */
  #remember(snapshot) {
    const { time, history } = snapshot;
    if (history?.length) {
      const own = this.#history.filter((sample) => sample.time < history[0].time);
      this.#history = [...own, ...history.map(sampleOf)];
    }
    const ahead = this.#history.length ? this.#history.at(-1).time - time : -1;
    if (ahead > CLOCK_NUDGE_S) this.#history = [];
    else if (ahead >= 0) return;
    this.#history.push(sampleOf(snapshot));
    while (time - this.#history[0].time > LONGEST_S) this.#history.shift();
  }

  #showTiles({ goodput, requests, roofline, uptime_s: uptime }) {
    const set = (name, text) => {
      this.#tiles.querySelector(`[data-value="${name}"]`).textContent = text;
    };
    set("goodput", goodput?.per_s == null ? NONE : `${digits(goodput.per_s)} /s`);
    set("goodput-share", goodput?.share == null ? "requests" : `${share(goodput.share)} in time`);
    set("finished", count(requests.finished));
    set("failed", count(requests.failed));
    set("mfu", share(roofline.mfu));
    set("mbu", share(roofline.mbu));
    set("uptime", span(uptime));
  }
}

const sampleOf = ({ time, tokens, requests, latency }) => ({
  time,
  generated: tokens.generated_per_s,
  prompt: tokens.prompt_per_s,
  running: requests.running,
  waiting: requests.waiting,
  ttft: latency.ttft_ms,
  tpot: latency.tpot_ms,
});

function tokensCard() {
  const card = new Card("tokens");
  const panel = (name, ink) => ({
    tick,
    least: 10,
    series: [{ value: (sample) => sample[name], ink, fill: true }],
  });
  const chart = new TimeChart(
    card.canvas,
    [panel("generated", "decode"), panel("prompt", "prefill")],
    LONGEST_S,
    (sample, seconds) => {
      card.set("generated", digits(sample.generated));
      card.set("prompt", digits(sample.prompt));
      card.when(ago(seconds, "tokens/s"));
    },
  );
  return ({ tokens }, history) => {
    card.filled(true);
    chart.show(
      history,
      `Tokens per second over the last minutes. ` +
        `Now ${digits(tokens.generated_per_s)} generated, ${digits(tokens.prompt_per_s)} of prompts.`,
    );
  };
}

function requestsCard() {
  const card = new Card("requests");
  const series = [
    { value: (sample) => sample.running, ink: "running", fill: true },
    { value: (sample) => sample.waiting, ink: "waiting", dash: [6, 3] },
  ];
  const chart = new TimeChart(card.canvas, [{ tick, least: 4, series }], LONGEST_S, (sample, seconds) => {
    card.set("running", count(sample.running));
    card.set("waiting", count(sample.waiting));
    card.when(ago(seconds, "requests"));
  });
  return ({ requests }, history) => {
    card.filled(true);
    chart.show(
      history,
      `Requests over the last minutes. Now ${requests.running} running, ${requests.waiting} waiting.`,
    );
  };
}

function latencyCard(name) {
  const card = new Card(name);
  const title = card.root.querySelector("h3").textContent;
  const series = PERCENTILES.map((p) => ({
    value: (sample) => sample[name]?.[p] ?? null,
    ink: p,
    ...PERCENTILE_LOOK[p],
  }));
  const chart = new TimeChart(
    card.canvas,
    [{ tick: millisecondsTick, least: 10, series }],
    LONGEST_S,
    (sample, seconds) => {
      for (const p of PERCENTILES) card.set(p, milliseconds(sample[name]?.[p]));
      card.when(ago(seconds, "milliseconds"));
    },
  );
  return ({ latency }, history) => {
    card.filled(history.some((sample) => sample[name]?.p50 != null));
    const values = PERCENTILES.map((p) => `${p} ${milliseconds(latency[`${name}_ms`]?.[p])}`);
    chart.show(history, `${title} over the last minutes. Now ${values.join(", ")}.`);
  };
}

function blocksCard() {
  const card = new Card("kv");
  let states = new Uint8Array();
  const map = new BlockMap(card.canvas, ["kv-free", "kv-cached", "kv-used"], (index, group) => {
    const total = `${count(states.length)} blocks${group > 1 ? `, a square is ${group}` : ""}`;
    if (index === null) card.when(total);
    else if (group > 1) card.when(`blocks ${count(index)} to ${count(Math.min(index + group, states.length) - 1)}`);
    else card.when(`block ${count(index)}: ${STATES[states[index]]}`);
  });
  return ({ kv_map: encoded }) => {
    states = Uint8Array.from(atob(encoded ?? ""), (character) => character.charCodeAt(0));
    card.filled(states.length > 0);
    // Counted here and not taken from the snapshot's sums, so that the numbers are always those of the map.
    const blocks = STATES.map((_, state) => states.reduce((sum, value) => sum + (value === state), 0));
    for (const [state, name] of ["free", "cached", "in-use"].entries()) {
      card.set(name, states.length ? count(blocks[state]) : "");
      card.set(`${name}-share`, states.length ? share(blocks[state] / states.length) : NONE);
    }
    const words = STATES.map((name, state) => `${count(blocks[state])} ${name}`);
    map.show(states, `Map of the KV cache, ${count(states.length)} blocks: ${words.join(", ")}.`);
  };
}

function stepsCard() {
  const card = new Card("steps");
  const look = {
    parts: ["decode", "draft", "prefill"].map((key) => ({ key, ink: key })),
    numSteps: 60,
    tokens: { tick, least: 4 },
    time: { tick: millisecondsTick, least: 1 },
  };
  const chart = new StepChart(card.canvas, look, (step, stepsAgo) => {
    for (const key of ["prefill", "decode", "draft"]) card.set(key, count(step[key]));
    card.set("ms", milliseconds(step.ms));
    card.when(stepsAgo ? `${stepsAgo} ${stepsAgo === 1 ? "step" : "steps"} ago` : "tokens a step");
  });
  return ({ steps }) => {
    card.filled(steps.length > 0);
    chart.show(steps, `Tokens and time of the last steps: ${steps.length ? describe(steps.at(-1)) : "none yet"}.`);
  };

  function describe({ prefill, decode, draft, ms }) {
    return `the last held ${prefill} prefill, ${decode} decode and ${draft} draft tokens and took ${milliseconds(ms)}`;
  }
}

function rooflineCard() {
  const card = new Card("roofline");
  let data = { points: [] };
  const looks = { prefill: { ink: "prefill", shape: "dot" }, decode: { ink: "decode", shape: "diamond" } };
  const newest = (phase) => data.points.findLast((point) => point.phase === phase);
  const chart = new Roofline(card.canvas, looks, (pointed) => {
    for (const phase of Object.keys(looks)) {
      const point = pointed?.phase === phase ? pointed : newest(phase);
      card.set(phase, prefixed(point?.flops, "FLOP/s"));
    }
    if (pointed) card.when(`${digits(pointed.intensity)} FLOP per byte`);
    else
      card.when(data.peakFlops && data.peakBandwidth ? "measured against the peak" : "the roof follows once measured");
  });
  return ({ roofline }) => {
    data = { peakFlops: roofline.peak_flops, peakBandwidth: roofline.peak_bandwidth, points: roofline.points };
    card.filled(data.points.length > 0 || Boolean(data.peakFlops && data.peakBandwidth));
    const reached = (phase) => prefixed(newest(phase)?.flops, "FLOP/s");
    chart.show(
      data,
      `Roofline: peak ${prefixed(data.peakFlops, "FLOP/s")} and ${prefixed(data.peakBandwidth, "bytes per second")}; ` +
        `prefill reaches ${reached("prefill")}, decode ${reached("decode")}.`,
    );
  };
}

function showTable(latency) {
  for (const row of document.querySelectorAll("[data-latency]")) {
    const values = latency[row.dataset.latency];
    row.querySelectorAll("td").forEach((cell, i) => {
      cell.textContent = milliseconds(values?.[PERCENTILES[i]]);
    });
  }
}
