// What is asked of the server, with the key if there is one.

const KEY = "holdfast-key";

export class KeyNeeded extends Error {}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Throws KeyNeeded, or an Error that says what the server said. */
export async function ask(path, { body, signal } = {}) {
  const headers = key.get() ? { authorization: `Bearer ${key.get()}` } : {};
  const asked = body ? { method: "POST", body: JSON.stringify(body) } : {};
  if (body) headers["content-type"] = "application/json";
  const response = await fetch(path, { ...asked, headers, signal, cache: "no-store" });
  if (response.status === 401) throw new KeyNeeded(await reason(response));
  if (!response.ok) throw new Error(await reason(response));
  return response;
}

export const json = async (path, options) => (await ask(path, options)).json();
export const text = async (path, options) => (await ask(path, options)).text();

/** The answer even if it is an error: /health says with a 503 what is wrong. */
export async function health(signal) {
  const response = await fetch("health", { signal, cache: "no-store" });
  return response.json();
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

async function reason(response) {
  try {
    return String((await response.json()).error.message);
  } catch {
    return `the server answered ${response.status}`;
  }
}
