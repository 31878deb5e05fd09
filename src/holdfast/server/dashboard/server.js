// What is asked of the server, with the key if there is one.

const KEY = "holdfast-key";

/** It could not be reached, or said no; the message is for the reader. */
export class NotHad extends Error {}
export class KeyNeeded extends NotHad {}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Throws NotHad, or an AbortError if the signal says so. */
export async function ask(path, { body, signal } = {}) {
  const headers = key.get() ? { authorization: `Bearer ${key.get()}` } : {};
  const asked = body ? { method: "POST", body: JSON.stringify(body) } : {};
  if (body) headers["content-type"] = "application/json";
  const response = await reach(() => fetch(path, { ...asked, headers, signal, cache: "no-store" }));
  if (response.status === 401) throw new KeyNeeded(await reason(response));
  if (!response.ok) throw new NotHad(await reason(response));
  return response;
}

export const json = (path, options) => reach(async () => (await ask(path, options)).json());
export const text = (path, options) => reach(async () => (await ask(path, options)).text());

/** The answer even if it is an error: /health says with a 503 what is wrong. */
export function health(signal) {
  return reach(async () => (await fetch("health", { signal, cache: "no-store" })).json());
}

/** The values of a stream of events, as they come. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (unread + value).split("\n\n");
    unread = whole.pop();
    for (const event of whole) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

/** A browser has a name for it if the server is gone or slow; the reader gets a sentence. */
async function reach(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "TimeoutError") throw new NotHad("no answer from the server");
    if (error.name === "TypeError") throw new NotHad("the server cannot be reached");
    throw error;
  }
}

async function reason(response) {
  try {
    return String((await response.json()).error.message);
  } catch {
    return `the server answered ${response.status}`;
  }
}
