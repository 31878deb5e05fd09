// A conversation with the model, streamed.

import { find, make, say } from "./dom.js";
import { percent, plural, rate, seconds } from "./format.js";
import { ask, events, KeyNeeded, NotHad } from "./server.js";

const messages = [];
let running = null;

/** onKeyNeeded is called if the server asks for another key */
export function startChat(onKeyNeeded) {
  const [form, prompt] = [find("chat-form"), find("prompt")];
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const said = prompt.value.trim();
    if (!said || running) return;
    prompt.value = "";
    answer(said).catch((error) => {
      if (error instanceof KeyNeeded) onKeyNeeded(error.message);
      else throw error;
    });
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  find("stop").addEventListener("click", () => running?.abort());
  find("new-chat").addEventListener("click", clear);
  clear();
}

function clear() {
  running?.abort();
  messages.length = 0;
  find("messages").replaceChildren(make("p", { class: "empty" }, "What is said here goes to the model and is kept nowhere."));
}

async function answer(said) {
  const asked = { role: "user", content: said };
  messages.push(asked);
  bubble("user", said);
  const shown = bubble("assistant", "");
  const got = { text: "", began: performance.now(), first: null, finish: null, usage: null };
  const stop = (running = new AbortController());
  busy(true);
  try {
    await stream(got, shown, stop.signal);
  } catch (error) {
    if (error instanceof KeyNeeded) throw error;
    if (!stop.signal.aborted) {
      shown.root.classList.add("failed");
      got.failure = error instanceof NotHad ? error.message : `the answer broke off: ${error.message}`;
    }
  } finally {
    if (messages.includes(asked)) {
      // what failed before it began is taken back, so that the next turn is well formed
      if (got.text) messages.push({ role: "assistant", content: got.text });
      else messages.splice(messages.indexOf(asked), 1);
    }
    say(shown.meta, summary(got, stop.signal.aborted));
    if (running === stop) running = null;
    busy(running !== null);
    follow(() => {}, true);
  }
}

async function stream(got, shown, signal) {
  const body = { messages, stream: true, stream_options: { include_usage: true } };
  const [temperature, most] = [find("temperature").value, find("max-tokens").value];
  if (temperature !== "") body.temperature = Number(temperature);
  if (most !== "") body.max_tokens = Number(most);
  const response = await ask("v1/chat/completions", { body, signal });
  for await (const event of events(response)) {
    if (event.error) throw new NotHad(String(event.error.message));
    got.usage = event.usage ?? got.usage;
    const choice = event.choices?.[0];
    if (!choice) continue;
    got.finish = choice.finish_reason ?? got.finish;
    const { content, reasoning_content: thought } = choice.delta ?? {};
    if (content || thought) got.first ??= performance.now();
    follow(() => {
      if (thought) shown.thought.append(thought);
      if (content) shown.text.append(content);
    });
    got.text += content ?? "";
  }
}

/** Change the messages; if their end was in view, it still is. */
function follow(change, always = false) {
  const view = find("messages");
  const atEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 40;
  change();
  if (atEnd || always) view.scrollTop = view.scrollHeight;
}

function bubble(role, content) {
  const thought = make("div", { class: "thought" });
  const text = make("div", { class: "text" }, content);
  const meta = make("p", { class: "meta" });
  const root = make("div", { class: "message", "data-role": role }, thought, text, meta);
  find("messages").querySelector(":scope > .empty")?.remove();
  follow(() => find("messages").append(root), true);
  return { root, thought, text, meta };
}

function summary({ began, first, finish, usage, failure }, stopped) {
  const told = [];
  if (failure) told.push(failure);
  else if (stopped) told.push("stopped");
  else if (finish === "length") told.push("cut off by the limit");
  if (first) told.push(`first token after ${seconds((first - began) / 1000)}`);
  if (usage) {
    const { prompt_tokens: prompt, completion_tokens: made, prompt_tokens_details: details } = usage;
    const took = (performance.now() - first) / 1000;
    told.push(plural(made, "token"));
    if (made > 1) told.push(`${rate((made - 1) / took)} a second`);
    if (details?.cached_tokens) told.push(`${percent(details.cached_tokens / prompt)} of the prompt resumed`);
  }
  return told.join(" · ");
}

function busy(is) {
  find("stop").hidden = !is;
  find("send").hidden = is;
  find("messages").setAttribute("aria-busy", String(is));
}
