// Owns the connection to the live snapshots: says when it is lost, and comes back. Knows nothing of what they hold.

import { ask, events } from "./service.js";

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30_000;
// A snapshot comes every second: silence this long means the connection is dead even if it was not closed.
const SILENCE_MS = 10_000;

export class Live {
  #onSnapshot;
  #onState;
  #wake = () => {};

  /** `onState` hears {state: "connected" | "away" | "locked", inSeconds}: locked means that a key is needed. */
  constructor({ onSnapshot, onState }) {
    this.#onSnapshot = onSnapshot;
    this.#onState = onState;
    addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => document.hidden || this.retry());
  }

  /** Tries at once, where it was waiting to try again. */
  retry() {
    this.#wake();
  }

  async run() {
    let wait = FIRST_WAIT_MS;
    while (true) {
      let locked = false;
      try {
        for await (const snapshot of this.#snapshots()) {
          wait = FIRST_WAIT_MS;
          this.#onState({ state: "connected" });
          this.#show(snapshot);
        }
      } catch (error) {
        locked = error.needsKey ?? false;
      }
      await this.#pause(locked ? LONGEST_WAIT_MS : wait * (0.8 + 0.4 * Math.random()), locked);
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }

  #show(snapshot) {
    try {
      this.#onSnapshot(snapshot);
    } catch (error) {
      // A mistake in a chart is ours: it must not look as if the service were away.
      reportError(error);
    }
  }

  async *#snapshots() {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    try {
      const response = await ask("live", { signal: silence.signal });
      for await (const data of events(response)) {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        yield JSON.parse(data);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #pause(milliseconds, locked) {
    const until = performance.now() + milliseconds;
    return new Promise((resolve) => {
      const say = () => {
        const left = Math.ceil((until - performance.now()) / 1000);
        if (left <= 0) return this.#wake();
        this.#onState({ state: locked ? "locked" : "away", inSeconds: left });
      };
      const timer = setInterval(say, 250);
      this.#wake = () => {
        clearInterval(timer);
        this.#wake = () => {};
        resolve();
      };
      say();
    });
  }
}
