// Owns how one question and its answer are shown. Model output is only ever text.

import { milliseconds } from "./format.js";

export function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function button(text, act) {
  const made = element("button", "quiet", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

/** The model's reasoning, folded away once the answer itself begins. A person who opens or closes it decides. */
class Thinking {
  #text = document.createTextNode("");
  #label = element("span", "label", "Thinking");
  #time = element("span", "time");
  #isDecided = false;

  constructor() {
    this.root = element("details", "thinking");
    this.root.open = true;
    const summary = element("summary", "");
    summary.append(this.#label, " ", this.#time);
    // The click on it: the toggle event also comes where the page itself folds it.
    summary.addEventListener("click", () => {
      this.#isDecided = true;
    });
    const thoughts = element("p", "thoughts");
    thoughts.append(this.#text);
    this.root.append(summary, thoughts);
  }

  write(piece, spent) {
    this.#text.appendData(piece);
    this.showTime(spent);
  }

  showTime(spent) {
    // Below a tenth of a second there is nothing to read.
    this.#time.textContent = spent >= 100 ? milliseconds(spent) : "";
  }

  end(spent, { fold }) {
    this.#label.textContent = "Thought for";
    this.#time.textContent = milliseconds(spent);
    if (fold && !this.#isDecided) this.root.open = false;
  }
}

/** A question and its answer, on the screen. */
export class Exchange {
  // The model no longer sees it.
  dropped = false;
  usage = null;
  #thinking = null;

  constructor(question) {
    this.question = question;
    this.root = element("article", "exchange");
    const asked = element("div", "said question");
    asked.append(element("h3", "hidden-text", "You"), element("p", "text", question));
    this.reply = element("div", "said answer");
    this.text = document.createTextNode("");
    this.paragraph = element("p", "text");
    this.paragraph.append(this.text);
    this.note = element("p", "note");
    this.reply.append(element("h3", "hidden-text", "Answer"), this.paragraph, this.note);
    this.root.append(asked, this.reply);
  }

  get answer() {
    return this.text.data;
  }

  get hasThought() {
    return this.#thinking !== null;
  }

  /** More reasoning; `spent` are the milliseconds of it so far. */
  think(piece, spent) {
    if (this.#thinking === null) {
      this.#thinking = new Thinking();
      this.reply.insertBefore(this.#thinking.root, this.paragraph);
      this.reply.classList.add("reasoning");
    }
    this.#thinking.write(piece, spent);
  }

  /** More of the answer. `fold`: the reasoning before it may be folded away. */
  write(piece, spent, fold) {
    this.#endThinking(spent, fold);
    this.text.appendData(piece);
  }

  #endThinking(spent, fold) {
    if (!this.reply.classList.contains("reasoning")) return;
    this.reply.classList.remove("reasoning");
    this.#thinking.end(spent, { fold });
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
    box.append(element("p", "", message), button(remedy, act));
    this.reply.append(box);
  }

  /** A way on from an answer that ended early, without an error. */
  offer(remedy, act) {
    const offer = button(remedy, act);
    offer.classList.add("remedy");
    this.reply.append(offer);
  }

  /** Nothing more comes. */
  settle(spent) {
    this.#endThinking(spent, false);
    this.reply.classList.remove("writing");
  }
}
