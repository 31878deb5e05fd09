// The page: its theme, its key, and a reading of the server every second.

import { startChat } from "./chat.js";
import { find, say } from "./dom.js";
import { Metrics } from "./metrics.js";
import * as panels from "./panels.js";
import { health, json, key, KeyNeeded, NotHad, text } from "./server.js";

const EVERY = 1000;
const PATIENCE = 5000;
const KEPT = 180;

const history = [];
let plan = null;
let open = false;

// --- theme ---

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  say(find("theme"), `Theme: ${theme}`);
}

find("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem("holdfast-theme", next);
  setTheme(next);
});
setTheme(THEMES.find((theme) => theme === localStorage.getItem("holdfast-theme")) ?? "auto");

// --- key ---

/** A new page: nothing that was read with the key stays in this one. */
function forgetKey() {
  key.forget();
  location.reload();
}

function askForKey(told) {
  if (open) return forgetKey();
  say(find("key-wrong"), key.get() ? told : "");
  key.forget();
  find("key-form").hidden = false;
  find("key").focus();
}

find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(find("key").value);
  find("key").value = "";
  begin();
});
find("forget-key").addEventListener("click", forgetKey);

/** Read what never changes; ask for a key if there is none, or a wrong one. */
async function begin() {
  try {
    const { data } = await json("v1/models");
    say(find("model"), data[0].id);
    document.title = `${data[0].id} · Holdfast`;
  } catch (error) {
    return failed(error);
  }
  find("key-form").hidden = true;
  find("forget-key").hidden = !key.get();
  find("main").hidden = false;
  open = true;
  await read();
}

// --- reading ---

function status(state, told) {
  find("status").dataset.state = state;
  say(find("status"), told);
}

function failed(error) {
  if (error instanceof KeyNeeded) askForKey(error.message);
  else if (error instanceof NotHad) status("unreachable", error.message);
  else reportError(error);
}

async function read() {
  const signal = AbortSignal.timeout(PATIENCE);
  try {
    const { status: state, reason } = await health(signal);
    status(state, reason ?? state);
    if (!open) return;
    const page = await text("metrics", { signal });
    history.push(new Metrics(page, performance.now() / 1000));
    if (history.length > KEPT) history.shift();
    panels.showTiles(history);
    panels.showOverTime(history);
    panels.showReuse(history.at(-1));
    panels.showLatency(history.at(-1));
    if (state !== "ok") {
      plan = null; // it may come back with another
      return panels.showRequests([]);
    }
    plan ??= await json("plan", { signal });
    panels.showPlan(plan, history.at(-1));
    panels.showPools(plan, history.at(-1));
    panels.showSanitizer(plan, history.at(-1));
    panels.showRequests((await json("requests", { signal })).requests);
  } catch (error) {
    failed(error);
  }
}

async function keepReading() {
  for (;;) {
    await new Promise((later) => setTimeout(later, EVERY));
    if (document.visibilityState === "visible") await (open || !find("key-form").hidden ? read() : begin());
  }
}

startChat(askForKey);
await begin();
keepReading();
