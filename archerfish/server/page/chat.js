// Owns the conversation: what was said, how it is shown, and the answer being written. Model output is only ever text.

import { turnsToDrop } from "./context.js";
import { count, digits, milliseconds } from "./format.js";
import { complete, countTokens } from "./service.js";

const STATISTICS_EVERY_MS = 250;
const NEAR_END_PX = 48;
const FINISHES = { length: "reached max tokens", content_filter: "filtered" };

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

/** When an answer's tokens came. */
class Timing {
  #start = 0;
  #first = null;
  #last = null;
  #pieces = 0;
  usage = null;

  start() {
    this.#start = performance.now();
  }

  piece() {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#pieces += 1;
  }

  /** [name, value] pairs. Until the service says how many tokens it wrote, pieces of text stand for them. */
  facts() {
    if (this.#first === null) return [];
    const tokens = this.usage?.completion_tokens ?? this.#pieces;
    const about = this.usage ? "" : "≈ ";
    const facts = [["TTFT", milliseconds(this.#first - this.#start)]];
    if (tokens > 1 && this.#last > this.#first) {
      facts.push(["speed", `${about}${digits((1000 * (tokens - 1)) / (this.#last - this.#first))} tokens/s`]);
    }
    facts.push(["length", `${about}${count(tokens)} ${tokens === 1 ? "token" : "tokens"}`]);
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    if (cached)
      facts.push(["prompt", `${count(cached)} of ${count(this.usage.prompt_tokens)} prompt tokens from the cache`]);
    return facts;
  }
}

/** A question and its answer, on the screen. */
class Exchange {
  // The model no longer sees it.
  dropped = false;
  usage = null;

  constructor(question) {
    this.question = question;
    this.root = element("article", "exchange");
    const asked = element("div", "said question");
    asked.append(element("h3", "hidden-text", "You"), element("p", "text", question));
    this.reply = element("div", "said answer waiting");
    this.text = document.createTextNode("");
    const paragraph = element("p", "text");
    paragraph.append(this.text);
    this.note = element("p", "note");
    this.reply.append(element("h3", "hidden-text", "Answer"), paragraph, this.note);
    this.root.append(asked, this.reply);
  }

  get answer() {
    return this.text.data;
  }

  write(piece) {
    this.reply.classList.remove("waiting");
    this.text.appendData(piece);
  }

  /** Says how fast it was, and how it ended. */
  state(facts, ending = "") {
    this.note.replaceChildren();
    for (const [name, value] of facts) {
      const fact = element("span", `fact ${name}`);
      if (name === "TTFT") {
        const abbreviation = element("abbr", "", "TTFT");
        abbreviation.title = "Time to first token, as seen from this page";
        fact.append(abbreviation, " ");
      }
      fact.append(value);
      this.note.append(fact);
    }
    if (ending) this.note.append(element("span", "fact ending", ending));
  }

  fail(message, remedy, act) {
    const box = element("div", "error");
    box.setAttribute("role", "alert");
    const button = element("button", "quiet", remedy);
    button.type = "button";
    button.addEventListener("click", act);
    box.append(element("p", "", message), button);
    this.reply.append(box);
  }

  settle() {
    this.reply.classList.remove("waiting", "writing");
  }
}

export class Chat {
  #exchanges = [];
  #writing = null;
  // Whoever scrolled up to read is left there.
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
      exchange.settle();
      exchange.state(timing.facts(), ending);
      this.#end(control);
    }
  }

  async #listen(exchange, timing, chunks) {
    let ending = "";
    let stated = 0;
    for await (const { choices, usage } of chunks) {
      if (usage) timing.usage = usage;
      const [choice] = choices ?? [];
      if (choice?.delta?.content) {
        timing.piece();
        exchange.write(choice.delta.content);
        if (performance.now() - stated > STATISTICS_EVERY_MS) {
          stated = performance.now();
          exchange.state(timing.facts());
        }
        this.#follow();
      }
      if (choice?.finish_reason) ending = FINISHES[choice.finish_reason] ?? "";
    }
    if (!exchange.answer) ending ||= "the model had nothing to say";
    return ending;
  }

  #failed(exchange, error) {
    if (error.needsKey) this.#onKeyNeeded(error.message);
    // What is too long stays so: sent again as it is, it could only fail again.
    const [remedy, act] = error.isTooLong
      ? ["Edit the message", this.#onEdit]
      : ["Try again", (question) => this.send(question)];
    exchange.fail(error.message, remedy, () => {
      if (this.busy) return;
      this.#exchanges = this.#exchanges.filter((other) => other !== exchange);
      exchange.root.remove();
      act(exchange.question);
    });
  }

  #begin(control, exchange) {
    this.#writing = control;
    exchange.reply.classList.add("writing");
    // Screen readers wait for the whole answer instead of stumbling over its pieces.
    this.#at("log").setAttribute("aria-busy", "true");
    this.#showButtons();
  }

  #end(control) {
    // Whoever stopped this answer may have begun the next one.
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
