// The page of /metrics, read as any scraper reads it; and what follows from several of them.

const PREFIX = "holdfast:";
const SAMPLE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { n: "\n", '"': '"', "\\": "\\" };

export class Metrics {
  /** samples by name, each with its labels (a Map: a label may have any name) and its value */
  #samples = new Map();

  constructor(page, time) {
    this.time = time;
    for (const line of page.split("\n")) {
      const found = SAMPLE.exec(line);
      if (!found) continue;
      const name = found[1].startsWith(PREFIX) ? found[1].slice(PREFIX.length) : found[1];
      const sample = { labels: labels(found[2] ?? ""), value: number(found[3]) };
      if (this.#samples.has(name)) this.#samples.get(name).push(sample);
      else this.#samples.set(name, [sample]);
    }
  }

  all(name) {
    return this.#samples.get(name) ?? [];
  }

  has(name) {
    return this.#samples.has(name);
  }

  value(name) {
    return this.#samples.get(name)?.[0].value ?? 0;
  }

  /** { buckets: [{ above, upTo, count }], count, sum } */
  histogram(name) {
    let before = 0;
    let above = 0;
    const buckets = this.all(`${name}_bucket`).map(({ labels, value }) => {
      const bucket = { above, upTo: number(labels.get("le")), count: value - before };
      above = bucket.upTo;
      before = value;
      return bucket;
    });
    return { buckets, count: this.value(`${name}_count`), sum: this.value(`${name}_sum`) };
  }
}

/** Below this lies such a part of what was counted, as far as the buckets tell. null if there was nothing. */
export function quantile({ buckets, count }, part) {
  let wanted = count * part;
  for (const { above, upTo, count: here } of buckets) {
    if (here && wanted <= here) return upTo === Infinity ? above : above + ((upTo - above) * wanted) / here;
    wanted -= here;
  }
  return null;
}

/** How much a counter grew from one page to the next; null if the engine was started anew in between. */
export function growth(before, after, name) {
  if (!before.has(name) || !after.has(name)) return null;
  const grown = after.value(name) - before.value(name);
  return grown < 0 ? null : grown;
}

function labels(text) {
  const unescaped = (value) => value.replace(/\\(.)/g, (whole, escaped) => ESCAPED[escaped] ?? whole);
  return new Map([...text.matchAll(LABEL)].map(([, name, value]) => [name, unescaped(value)]));
}

function number(text) {
  return text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
}
