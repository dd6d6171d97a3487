// Owns talking to the service: the API key, errors, event streams. Knows nothing of what is shown.

const KEY = "archerfish-api-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** What the service answered instead of what was asked for; `status` is null where it did not answer at all. */
export class ServiceError extends Error {
  constructor(message, status = null, code = null) {
    super(message);
    this.name = "ServiceError";
    this.status = status;
    this.code = code;
  }

  /** Whether the same question would be refused again. */
  get isTooLong() {
    return this.code === "context_length_exceeded";
  }

  get needsKey() {
    return this.status === 401 || this.status === 403;
  }
}

/** A response whose status is good. Paths are relative: the page may live under a prefix. */
export async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError("The service could not be reached.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  let message = null;
  let code = null;
  try {
    ({ message, code } = JSON.parse(text).error);
  } catch {
    // Something before the service answered, in its own way.
  }
  const wait = response.headers.get("Retry-After");
  const when = /^\d+$/.test(wait ?? "") ? ` Try again in ${wait} s.` : "";
  const what = message || `The service answered with status ${response.status}.`;
  return new ServiceError(what + when, response.status, code);
}

/** The data of each server-sent event of a response, as text. Ends when the connection does. */
export async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let pending = "";
  try {
    while (true) {
      const { done, value } = await read(reader);
      if (done) return;
      pending += decoder.decode(value, { stream: true });
      const parts = pending.split(/\r?\n\r?\n/);
      pending = parts.pop();
      for (const part of parts) {
        const data = part
          .split(/\r?\n/)
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).replace(/^ /, ""));
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    // A caller that stops reading early also disconnects.
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError("The connection to the service was lost.");
  }
}

/** The chunks of a chat completion; an error inside the stream, or a stream cut short, is raised. */
export async function* complete(body, signal) {
  const response = await ask("v1/chat/completions", { body, signal });
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServiceError(chunk.error.message, response.status);
    yield chunk;
  }
  throw new ServiceError("The connection closed before the answer was complete.");
}

/** [{id, max_model_len, ...}] */
export async function listModels() {
  const response = await ask("v1/models");
  return (await response.json()).data;
}

/** How many tokens the messages of a chat become. */
export async function countTokens(model, messages, signal) {
  const response = await ask("tokenize", { body: { model, messages }, signal });
  return (await response.json()).count;
}
