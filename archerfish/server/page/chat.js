// Owns the conversation: what was said, and the answer being written. Does not know how either is shown.

import { turnsToDrop } from "./context.js";
import { Exchange, element } from "./exchange.js";
import { count } from "./format.js";
import { complete, countTokens } from "./service.js";
import { Timing } from "./timing.js";

const STATISTICS_EVERY_MS = 250;
const NEAR_END_PX = 48;
const FINISHES = { length: "reached max tokens", content_filter: "filtered" };
const STILL_THINKING = "still thinking at max tokens; raise Max tokens";

export class Chat {
  #exchanges = [];
  #writing = null;
  // A reader who has scrolled up stays there.
  #following = true;
  #ask;
  #contextOf;
  #onEdit;
  #onKeyNeeded;
  #dropped = element("p", "dropped");
  #at = (id) => document.getElementById(id);

  /**
   * `ask()` gives what goes with the messages: {model, temperature, ...}; null where it is not fit to be sent.
   * `contextOf(model)` gives the most tokens of its context, if known; `onEdit(question)` takes a question back.
   */
  constructor({ ask, contextOf, onEdit, onKeyNeeded }) {
    this.#ask = ask;
    this.#contextOf = contextOf;
    this.#onEdit = onEdit;
    this.#onKeyNeeded = onKeyNeeded;
    const scroll = this.#at("scroll");
    scroll.addEventListener("scroll", () => {
      this.#following = this.#atEnd();
      this.#at("newest").hidden = this.#following;
    });
    new ResizeObserver(() => this.#follow()).observe(scroll);
    this.#at("newest").addEventListener("click", () => this.#toEnd());
  }

  get busy() {
    return this.#writing !== null;
  }

  /** True when the question is on its way. */
  async send(question) {
    if (this.busy || !question.trim()) return false;
    const asked = await this.#ask();
    if (asked === null || this.busy) return false;
    const exchange = new Exchange(question);
    const before = this.#exchanges.filter((other) => other.answer && !other.dropped);
    this.#exchanges.push(exchange);
    this.#at("welcome").hidden = true;
    this.#at("log").append(exchange.root);
    this.#toEnd();
    this.#answer(exchange, before, { ...asked, stream: true, stream_options: { include_usage: true } });
    return true;
  }

  stop() {
    this.#writing?.abort();
  }

  reset() {
    this.stop();
    this.#exchanges = [];
    this.#at("log").replaceChildren();
    this.#at("welcome").hidden = false;
    this.#toEnd();
  }

  /** The turns and the question. A question that got no answer is no turn, and is not repeated to the model. */
  #messages(turns, question) {
    const said = turns.flatMap((exchange) => [
      { role: "user", content: exchange.question },
      { role: "assistant", content: exchange.answer },
    ]);
    return [...said, { role: "user", content: question }];
  }

  /** The turns that fit the context together with the question. Where it is full the oldest are dropped, visibly. */
  async #fitting(turns, exchange, { model, max_tokens: maxTokens }, signal) {
    const limit = this.#contextOf(model);
    const last = turns.at(-1)?.usage;
    const count = (dropped) => countTokens(model, this.#messages(turns.slice(dropped), exchange.question), signal);
    const dropped = await turnsToDrop({
      numTurns: turns.length,
      question: exchange.question,
      maxTokens,
      limit,
      used: last ? last.prompt_tokens + last.completion_tokens : undefined,
      count,
    });
    // What is too long by itself costs no turn. It is sent all the same: the service says by how much.
    if (dropped === null) return [];
    if (dropped) this.#drop(turns.slice(0, dropped), turns[dropped] ?? exchange, limit);
    return turns.slice(dropped);
  }

  #drop(turns, firstKept, limit) {
    for (const exchange of turns) {
      exchange.dropped = true;
      exchange.root.classList.add("forgotten");
    }
    this.#dropped.textContent = `The context of ${count(limit)} tokens is full: the turns above were dropped.`;
    this.#at("log").insertBefore(this.#dropped, firstKept.root);
  }

  async #answer(exchange, before, body) {
    const control = new AbortController();
    const timing = new Timing();
    this.#begin(control, exchange);
    let ending = "";
    try {
      const turns = await this.#fitting(before, exchange, body, control.signal);
      const messages = this.#messages(turns, exchange.question);
      timing.start();
      ending = await this.#listen(exchange, timing, complete({ ...body, messages }, control.signal));
    } catch (error) {
      if (control.signal.aborted) ending = "stopped";
      else this.#failed(exchange, error);
    } finally {
      exchange.usage = timing.usage;
      exchange.settle(timing.thinking);
      exchange.state(timing.facts(), ending);
      if (ending === STILL_THINKING) exchange.offer("Try again", () => this.#retry(exchange));
      this.#end(control);
    }
  }

  async #listen(exchange, timing, chunks) {
    let ending = "";
    let stated = 0;
    for await (const { choices, usage } of chunks) {
      if (usage) timing.usage = usage;
      const [choice] = choices ?? [];
      if (this.#write(exchange, timing, choice?.delta ?? {})) {
        if (performance.now() - stated > STATISTICS_EVERY_MS) {
          stated = performance.now();
          exchange.state(timing.facts());
        }
        this.#follow();
      }
      if (choice?.finish_reason) ending = FINISHES[choice.finish_reason] ?? "";
    }
    if (exchange.answer) return ending;
    if (!exchange.hasThought) return ending || "the model had nothing to say";
    return ending === FINISHES.length ? STILL_THINKING : ending || "the model thought, but did not answer";
  }

  /** Whether the delta had any text. */
  #write(exchange, timing, { reasoning, content }) {
    if (reasoning) {
      timing.thought();
      exchange.think(reasoning, timing.thinking);
    }
    if (content) {
      timing.said();
      // Folded away under a person who scrolled up to read it, the text would be lost from sight.
      exchange.write(content, timing.thinking, this.#following);
    }
    return Boolean(reasoning || content);
  }

  #failed(exchange, error) {
    if (error.needsKey) this.#onKeyNeeded(error.message);
    // What is too long stays so: sent again as it is, it could only fail again.
    const [remedy, act] = error.isTooLong ? ["Edit the message", this.#onEdit] : ["Try again", undefined];
    exchange.fail(error.message, remedy, () => this.#retry(exchange, act));
  }

  /** The question again, with the settings of now; its exchange goes. */
  #retry(exchange, act = (question) => this.send(question)) {
    if (this.busy) return;
    this.#exchanges = this.#exchanges.filter((other) => other !== exchange);
    exchange.root.remove();
    act(exchange.question);
  }

  #begin(control, exchange) {
    this.#writing = control;
    exchange.reply.classList.add("writing");
    // Screen readers wait for the whole answer instead of stumbling over its pieces.
    this.#at("log").setAttribute("aria-busy", "true");
    this.#showButtons();
  }

  #end(control) {
    // The next answer may have begun since this one was stopped.
    if (this.#writing !== control) return;
    this.#writing = null;
    this.#at("log").setAttribute("aria-busy", "false");
    this.#showButtons();
    this.#follow();
  }

  /** One of Send and Stop is there; the focus goes with it, so that it is never lost. */
  #showButtons() {
    const [shown, gone] = this.busy ? [this.#at("stop"), this.#at("send")] : [this.#at("send"), this.#at("stop")];
    const focused = document.activeElement === gone;
    shown.hidden = false;
    gone.hidden = true;
    if (focused) (this.busy ? shown : this.#at("message")).focus();
  }

  #atEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.#at("scroll");
    return scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  #follow() {
    if (this.#following) this.#toEnd();
  }

  #toEnd() {
    this.#following = true;
    this.#at("newest").hidden = true;
    this.#at("scroll").scrollTop = this.#at("scroll").scrollHeight;
  }
}
