// Owns the page: binds its controls to the chat and the live panel. Does none of their work.

import { Board } from "./board.js";
import { Chat } from "./chat.js";
import { Live } from "./live.js";
import { key, listModels } from "./service.js";

const at = (id) => document.getElementById(id);

// The models.

let models = [];
let modelsOf = null;

async function loadModels() {
  models = await listModels();
  at("model-select").replaceChildren(...models.map(({ id }) => new Option(id, id)));
  at("model-choice").hidden = models.length < 2;
}

function showModel(name) {
  at("model").textContent = name;
  at("welcome-model").textContent = name || "the model";
  document.title = name ? `${name} · Archerfish` : "Archerfish";
}

// The chat.

const number = (id) => (at(id).value === "" ? undefined : at(id).valueAsNumber);

async function ask() {
  if (!at("composer").reportValidity()) return null;
  // Where the models cannot be listed, the question itself will say why.
  if (!models.length) await loadModels().catch(() => {});
  return {
    model: at("model-select").value || at("model").textContent,
    temperature: number("temperature"),
    max_tokens: number("max-tokens"),
    seed: number("seed"),
  };
}

const contextOf = (model) => models.find(({ id }) => id === model)?.max_model_len;

function edit(question) {
  at("message").value = question;
  at("message").focus();
}

const chat = new Chat({ ask, contextOf, onEdit: edit, onKeyNeeded: askForKey });

async function send() {
  const question = at("message").value;
  if (await chat.send(question)) at("message").value = "";
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
at("message").addEventListener("keydown", (event) => {
  // While an input method composes a character, Enter belongs to it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
at("stop").addEventListener("click", () => chat.stop());
at("chat").addEventListener("keydown", (event) => event.key === "Escape" && chat.stop());
at("new-conversation").addEventListener("click", () => {
  chat.reset();
  at("message").focus();
});
for (const button of document.querySelectorAll(".suggestion")) {
  button.addEventListener("click", () => {
    at("message").focus();
    chat.send(button.textContent);
  });
}

// The live panel.

const board = new Board();
const live = new Live({ onSnapshot, onState });

function onSnapshot(snapshot) {
  showStatus(snapshot.status);
  showModel(snapshot.model);
  // Once for each model that is served; a restart may have brought another.
  if (snapshot.status === "ready" && modelsOf !== snapshot.model) {
    modelsOf = snapshot.model;
    models = [];
    loadModels().catch(() => {});
  }
  board.show(snapshot);
}

function onState({ state, inSeconds }) {
  const lost = state !== "connected";
  at("live").classList.toggle("stale", lost);
  at("away").hidden = !lost;
  if (!lost) return;
  const locked = state === "locked";
  showStatus(locked ? "key needed" : "away");
  setText("away-what", locked ? "The service needs an API key." : "The service is away.");
  setText("away-when", locked ? "" : `Trying again in ${inSeconds} s.`);
  setText("away-act", locked ? "Enter the key" : "Try now");
}

/** Changes the text only where it differs: status regions would be read aloud again. */
function setText(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

function showStatus(status) {
  setText("status", status);
  at("status").dataset.status = status;
}

at("away-act").addEventListener("click", () => (at("status").dataset.status === "away" ? live.retry() : askForKey()));

// The key.

const KEY_WHY = at("key-why").textContent;

function askForKey(why = "") {
  if (at("key-dialog").open) return;
  at("key-why").textContent = [why, KEY_WHY].filter(Boolean).join(" ");
  at("key").value = key.get();
  at("key-dialog").showModal();
}

at("key-open").addEventListener("click", () => askForKey());
at("key-cancel").addEventListener("click", () => at("key-dialog").close());
at("key-form").addEventListener("submit", () => {
  key.set(at("key").value.trim());
  modelsOf = null;
  live.retry();
});

// On a small screen one of the two is shown at a time.

for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => {
    document.body.dataset.view = button.dataset.view;
    for (const other of document.querySelectorAll(".views button")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
  });
}

live.run();
