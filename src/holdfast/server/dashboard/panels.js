// What is seen of the engine: each panel shows a part of the plan, of the metrics or of the live requests.

import { bar, histogram, legend, LineChart } from "./charts.js";
import { find, keep, make, say, style } from "./dom.js";
import { bytes, count, percent, plural, rate, seconds } from "./format.js";
import { growth, quantile } from "./metrics.js";

const MOST_SHOWN = 50;
const SPAN = 180;

const LATENCIES = {
  time_to_first_token_seconds: "First token",
  inter_token_latency_seconds: "Token to token",
  request_queue_time_seconds: "In the queue",
  e2e_request_latency_seconds: "Whole answer",
};

const COUNTERS = {
  published: "left behind for reuse",
  skipped: "wanted, but no slot to be had",
  evicted_checkpoints: "made room for others",
  lost_checkpoints: "went with their page",
  replaced_checkpoints: "gave way to a better one",
  evicted_pages: "pages of KV that made room",
  waited: "requests that let another compute their prefix",
  num_preemptions: "requests pre-empted for want of pages",
};

// --- the plan, which never changes while the engine lives ---

export function showPlan(plan, metrics) {
  const { bytes: sizes, bytes_per: each, limits } = plan;
  const kept = limits.num_checkpoints * each.checkpoint;
  const used = use(metrics, limits);
  const pages = `${count(limits.num_pages)} pages of ${bytes(each.kv_page)}: ${count(plan.kv_tokens)} tokens`;
  const slots = (some) => `${count(some)} of ${bytes(each.checkpoint)}`;
  const rows = `${count(limits.max_num_seqs)} rows of ${bytes(each.row)}`;
  const drafter = plan.options.speculative_config;
  const parts = [
    { name: "Weights", size: sizes.weights, color: "weights", told: drafter ? `with drafts by ${drafter.method}` : "" },
    { name: "KV", size: sizes.kv, color: "kv", told: pages, full: used.pages },
    {
      name: "Running slots",
      size: Math.max(0, sizes.checkpoints - kept),
      color: "slots",
      told: slots(limits.num_slots - limits.num_checkpoints),
      full: used.running,
    },
    { name: "Checkpoints", size: kept, color: "checkpoints", told: slots(limits.num_checkpoints), full: used.kept },
    { name: "Journals", size: sizes.journals, color: "journals", told: rows },
    { name: "Tables", size: sizes.tables, color: "tables", told: `${count(limits.max_model_len)} positions a row` },
    {
      name: "Activations",
      size: sizes.activations,
      color: "activations",
      told: `${count(limits.max_num_batched_tokens)} tokens a step, ${plan.steps}`,
    },
    { name: "Graphs", size: sizes.graphs, color: "graphs", told: `recorded steps, ${plan.steps}` },
    { name: "Sanitizer", size: sizes.sanitizer, color: "sanitizer", told: plan.options.sanitizer },
  ].filter((part) => part.size > 0);
  bar(
    find("plan-bar"),
    parts.map((part) => ({ ...part, title: `${part.name}: ${bytes(part.size)}. ${part.told}` })),
  );
  legend(
    find("plan-parts"),
    parts.map((part) => ({ ...part, value: bytes(part.size) })),
  );
  const { device, dtype } = plan.options;
  say(find("plan-total"), `${bytes(sizes.total)} on ${device}, ${dtype}`);
  const fits = plan.fits.map(
    (fit) => `${plural(fit.requests, "request")} of ${count(fit.length)} tokens at once; ${fit.change}`,
  );
  keep(find("plan-fits"), [...fits, ...plan.notes], (told) => told, () => make("li"), say);
}

/** The parts of the pools that are in use, 0 to 1. */
function use(metrics, limits) {
  const part = (held, total) => (total ? Math.min(1, held / total) : 0);
  const slots = limits.num_slots - limits.num_checkpoints;
  return {
    pages: metrics.value("kv_cache_usage_perc"),
    running: part(metrics.value("num_requests_running"), slots),
    kept: part(metrics.value("checkpoints"), limits.num_checkpoints),
  };
}

// --- pools ---

export function showPools(plan, metrics) {
  const pages = ["pages", "pages_free", "pages_reusable"].map((name) => metrics.value(name));
  const slots = ["slots", "slots_free", "checkpoints"].map((name) => metrics.value(name));
  const rows = [plan.limits.max_num_seqs, metrics.value("rows_free"), 0];
  const pools = [
    { name: "KV pages", id: "pages", sizes: pages, color: "kv", idle: "reusable" },
    { name: "Slots", id: "slots", sizes: slots, color: "slots", idle: "kept for reuse", idleColor: "checkpoints" },
    { name: "Rows", id: "rows", sizes: rows, color: "slots" },
  ].filter((pool) => pool.sizes[0] > 0);
  const create = ({ id }) =>
    make(
      "div",
      { class: "pool", id: `pool-${id}` },
      make("div", { class: "name" }),
      make("div", { class: "bar" }),
      make("div", { class: "told" }),
    );
  keep(find("pools"), pools, (pool) => pool.id, create, (element, pool) => {
    const [total, free, idle] = pool.sizes;
    const held = Math.max(0, total - free - idle);
    const told = [`${count(held)} in use`, `${count(free)} free`];
    if (pool.idle) told.splice(1, 0, `${count(idle)} ${pool.idle}`);
    say(element.children[0], pool.name);
    bar(element.children[1], [
      { name: "held", size: held, color: pool.color, title: told[0] },
      { name: "idle", size: idle, color: pool.idleColor ?? `${pool.color}-idle`, title: told[1] },
      { name: "free", size: free, color: "free", title: `${count(free)} free` },
    ]);
    say(element.children[2], `${told.join(" · ")} · of ${count(total)}`);
    element.dataset.held = held;
  });
}

// --- live requests ---

export function showRequests(requests) {
  const shown = requests.slice(0, MOST_SHOWN);
  const running = requests.filter((request) => request.row !== null).length;
  say(find("requests-count"), `${count(running)} running · ${count(requests.length - running)} waiting`);
  const left = requests.length - shown.length;
  say(find("requests-more"), requests.length ? (left ? `and ${count(left)} more` : "") : "Nobody asks for anything now.");
  keep(find("requests"), shown, (request) => request.id, requestRow, fillRequestRow);
}

function requestRow() {
  const position = make("div", { class: "bar thin" });
  const cell = make("td", { class: "grow" }, position, make("span", { class: "told" }));
  return make("tr", {}, make("td"), make("td"), cell, make("td"), make("td"), make("td"));
}

function fillRequestRow(element, request) {
  const [id, row, position, resumed, age, waits] = element.children;
  const { prompt_tokens: prompt, tokens, position: done } = request;
  say(id, request.id);
  say(row, request.row === null ? "–" : String(request.row));
  bar(position.firstChild, [
    { name: "prompt", size: Math.min(done, prompt), color: "kv", title: `${count(Math.min(done, prompt))} of the prompt absorbed` },
    { name: "answer", size: Math.max(0, done - prompt), color: "slots", title: `${count(Math.max(0, done - prompt))} of the answer` },
    { name: "left", size: Math.max(0, tokens - done), color: "free", title: `${count(Math.max(0, tokens - done))} to be absorbed` },
  ]);
  say(position.lastChild, `${count(done)} of ${count(tokens)} · prompt ${count(prompt)}`);
  say(resumed, request.row === null ? "–" : count(request.cached_tokens));
  resumed.title = request.cache_reason;
  say(age, seconds(request.seconds));
  const gets = done < prompt ? "its prompt, which is computed" : "its next token";
  const before = request.preemptions ? `pre-empted ${plural(request.preemptions, "time")}; ` : "";
  say(waits, before + (request.waits_for || gets));
  element.className = request.row === null ? "waiting" : "";
}

// --- over time ---

const share = (value) => (value === undefined || value === null ? "–" : percent(value));

const poolUse = new LineChart(
  find("pools-over-time"),
  [
    { name: "pages that hold KV", color: "kv", format: share },
    { name: "slots that hold state", color: "slots", format: share },
  ],
  { empty: "Nothing was read yet.", top: 1, format: percent },
);
const throughput = new LineChart(
  find("throughput"),
  [
    { name: "answers", color: "slots", format: rate },
    { name: "prompts", color: "kv", format: rate },
  ],
  { empty: "Two readings are needed for a rate." },
);
const speculation = new LineChart(
  find("speculation"),
  [
    { name: "accept length", color: "checkpoints", format: (value) => value?.toFixed(2) ?? "–" },
    { name: "depth", color: "journals", format: (value) => value?.toFixed(1) ?? "–", dashed: true },
  ],
  { empty: "No drafts were verified lately." },
);

/** history: pages of metrics, oldest first, a second or so apart */
export function showOverTime(history) {
  const pairs = history.slice(1).map((after, place) => [history[place], after]);
  const span = Math.min(SPAN, Math.max(30, history.at(-1).time - history[0].time));
  poolUse.show(
    history.map((metrics) => ({ time: metrics.time, values: ["pages", "slots"].map((pool) => partHeld(metrics, pool)) })),
    span,
  );
  throughput.show(
    pairs.map(([before, after]) => ({
      time: after.time,
      values: ["generation_tokens_total", "prompt_tokens_total"].map((name) => perSecond(before, after, name)),
    })),
    span,
  );
  speculation.show(
    pairs.map(([before, after]) => ({ time: after.time, values: drafting(before, after) })),
    span,
  );
  say(find("speculation-now"), speculationNow(history.at(-1)));
}

/** The part of a pool that is not free, 0 to 1; null if there is no such pool. */
function partHeld(metrics, pool) {
  const total = metrics.value(pool);
  return total ? 1 - metrics.value(`${pool}_free`) / total : null;
}

/** Accept length and depth: of the drafts verified between the two, or nothing. */
function drafting(before, after) {
  const windows = growth(before, after, "spec_decode_num_drafts_total");
  if (!windows) return [null, null];
  const drafts = growth(before, after, "spec_decode_num_draft_tokens_total");
  return [1 + growth(before, after, "spec_decode_num_accepted_tokens_total") / windows, drafts / windows];
}

function speculationNow(metrics) {
  const drafts = metrics.value("spec_decode_num_draft_tokens_total");
  if (!drafts) return "";
  const part = metrics.value("spec_decode_num_accepted_tokens_total") / drafts;
  return `${percent(part)} of ${count(drafts)} drafts accepted`;
}

function perSecond(before, after, name) {
  const grown = growth(before, after, name);
  return grown === null ? null : grown / (after.time - before.time);
}

// --- prefix reuse ---

export function showReuse(metrics) {
  const asked = metrics.value("prefix_cache_queries_total");
  const resumed = metrics.value("resumed_tokens_total");
  const lost = metrics.value("lost_tokens_total");
  const parts = [
    { name: "Resumed", size: resumed, color: "slots", told: "not computed again" },
    { name: "Matched in vain", size: lost, color: "checkpoints", told: "KV was there, no checkpoint so deep" },
    { name: "New", size: Math.max(0, asked - resumed - lost), color: "free", told: "never seen before" },
  ];
  bar(find("reuse-bar"), asked ? parts.map((part) => ({ ...part, title: `${part.name}: ${count(part.size)}` })) : []);
  legend(find("reuse-parts"), parts.map((part) => ({ ...part, value: count(part.size) })));
  say(find("reuse-rate"), asked ? `${percent(resumed / asked)} of ${count(asked)} prompt tokens` : "no prompt yet");
  const outcomes = metrics.all("prefix_cache_requests_total").toSorted((a, b) => b.value - a.value);
  find("reuse-none").hidden = outcomes.length > 0;
  const most = Math.max(1, ...outcomes.map(({ value }) => value));
  const why = ({ labels }) => labels.get("outcome") ?? "";
  const create = () => make("div", { class: "why" }, make("span"), make("span"), make("div"));
  keep(find("reuse-why"), outcomes, why, create, (element, outcome) => {
    say(element.children[0], why(outcome));
    say(element.children[1], plural(outcome.value, "request"));
    style(element.children[2], { "--full": outcome.value / most });
  });
  keep(find("reuse-counters"), Object.entries(COUNTERS), ([name]) => name, fact, (element, [name, told]) => {
    say(element.children[0], told);
    say(element.children[1], count(metrics.value(`${name}_total`)));
  });
}

const fact = () => make("div", {}, make("dt"), make("dd"));

// --- latency ---

export function showLatency(metrics) {
  const create = () =>
    make("figure", {}, make("figcaption"), make("div", { class: "buckets" }), make("p", { class: "told" }));
  keep(find("latency"), Object.entries(LATENCIES), ([name]) => name, create, (element, [name, title]) => {
    const found = metrics.histogram(name);
    say(element.children[0], title);
    histogram(element.children[1], worthShowing(found.buckets));
    const parts = [0.5, 0.9, 0.99].map((part) => `p${100 * part} ${seconds(quantile(found, part))}`);
    say(element.children[2], found.count ? parts.join(" · ") : "nothing yet");
  });
}

/** From the first bucket that has something to the last, and one beside each. */
function worthShowing(buckets) {
  const first = buckets.findIndex((bucket) => bucket.count);
  const last = buckets.findLastIndex((bucket) => bucket.count);
  const shown = first < 0 ? [] : buckets.slice(Math.max(0, first - 1), last + 2);
  return shown.map(({ above, upTo, count: counted }) => ({
    label: upTo === Infinity ? "more" : seconds(upTo),
    count: counted,
    title: `${count(counted)} ${upTo === Infinity ? `above ${seconds(above)}` : `up to ${seconds(upTo)}`}`,
  }));
}

// --- in short, and the sanitizer ---

export function showTiles(history) {
  const [now, before] = [history.at(-1), history.at(-2)];
  const asked = now.value("prefix_cache_queries_total");
  const windows = now.value("spec_decode_num_drafts_total");
  const findings = now.value("sanitizer_findings_total");
  const speed = before ? perSecond(before, now, "generation_tokens_total") : null;
  const accepted = 1 + now.value("spec_decode_num_accepted_tokens_total") / windows;
  const tiles = [
    { name: "running", value: count(now.value("num_requests_running")) },
    { name: "waiting", value: count(now.value("num_requests_waiting")) },
    { name: "tokens a second", value: rate(speed) },
    { name: "first token", value: seconds(quantile(now.histogram("time_to_first_token_seconds"), 0.5)) },
    { name: "hit rate", value: asked ? percent(now.value("resumed_tokens_total") / asked) : "–" },
    { name: "accept length", value: windows ? accepted.toFixed(2) : "–" },
    { name: "sanitizer findings", value: count(findings), bad: findings > 0 },
  ];
  const create = () => make("div", { class: "tile" }, make("strong"), make("span"));
  keep(find("tiles"), tiles, (tile) => tile.name, create, (element, { name, value, bad }) => {
    say(element.firstChild, value);
    say(element.lastChild, name);
    element.classList.toggle("bad", Boolean(bad));
  });
}

const SANITIZERS = {
  off: "It is off: accesses to state are not compared with what was planned. --sanitizer stamps does, for little.",
  stamps: "Every access to state is compared with what was planned.",
  full: "Every access to state is compared with what was planned, and now and then a state with its tokens.",
};

export function showSanitizer(plan, metrics) {
  const findings = metrics.value("sanitizer_findings_total");
  const mode = plan.options.sanitizer;
  say(find("sanitizer-mode"), mode);
  const found = findings
    ? `${plural(findings, "finding")}: a defect of the engine. The log says which; the requests concerned were ended.`
    : mode === "off" ? "" : "No findings.";
  say(find("sanitizer-told"), `${SANITIZERS[mode] ?? ""} ${found}`.trim());
  find("sanitizer-told").classList.toggle("wrong", findings > 0);
}
