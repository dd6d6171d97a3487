// Owns when the tokens of one answer came, and what follows from that. Knows nothing of how it is shown.

import { count, digits, milliseconds } from "./format.js";

export class Timing {
  #start = 0;
  #first = null;
  #last = null;
  #thinkingStart = null;
  #thinkingEnd = null;
  #pieces = 0;
  usage = null;

  start() {
    this.#start = performance.now();
  }

  /** A piece of reasoning came. */
  thought() {
    this.#piece();
    this.#thinkingStart ??= this.#last;
  }

  /** A piece of the answer itself came. */
  said() {
    this.#piece();
    if (this.#thinkingStart !== null) this.#thinkingEnd ??= this.#last;
  }

  #piece() {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#pieces += 1;
  }

  /** Milliseconds from the first reasoning to the first of the answer, or to the last reasoning so far. */
  get thinking() {
    if (this.#thinkingStart === null) return null;
    return (this.#thinkingEnd ?? this.#last) - this.#thinkingStart;
  }

  /** [name, value] pairs. Until the service says how many tokens it wrote, pieces of text stand for them. */
  facts() {
    if (this.#first === null) return [];
    const tokens = this.usage?.completion_tokens ?? this.#pieces;
    const about = this.usage ? "" : "≈ ";
    // Reasoning is text that a person can read, so it counts: the first token and the speed are those of both.
    const facts = [["TTFT", milliseconds(this.#first - this.#start)]];
    if (tokens > 1 && this.#last > this.#first) {
      facts.push(["speed", `${about}${digits((1000 * (tokens - 1)) / (this.#last - this.#first))} tokens/s`]);
    }
    const reasoning = this.usage?.completion_tokens_details?.reasoning_tokens;
    const part = reasoning ? ` (${count(reasoning)} thinking)` : "";
    facts.push(["length", `${about}${count(tokens)} ${tokens === 1 ? "token" : "tokens"}${part}`]);
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    if (cached)
      facts.push(["prompt", `${count(cached)} of ${count(this.usage.prompt_tokens)} prompt tokens from the cache`]);
    return facts;
  }
}
