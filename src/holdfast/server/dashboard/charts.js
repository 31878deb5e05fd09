// A bar of parts, lines over time, a histogram.

import { draw, keep, make, say, style } from "./dom.js";

/** parts: [{ name, size, color, title, full }]; `full` is the part of it in use, 1 if left out */
export function bar(container, parts) {
  const create = () => make("div", { class: "part" }, make("div", { class: "full" }));
  keep(container, parts, (part) => part.name, create, (element, { size, color, title, full = 1 }) => {
    style(element, { "--size": size, "--color": `var(--${color})` });
    style(element.firstChild, { "--full": full });
    element.title = title;
  });
}

/** entries: [{ name, color, value, told }] */
export function legend(container, entries) {
  const create = () =>
    make(
      "li",
      {},
      make("span", { class: "swatch" }),
      make("span", { class: "name" }),
      make("span", { class: "value" }),
      make("span", { class: "told" }),
    );
  keep(container, entries, (entry) => entry.name, create, (element, { name, color, value, told = "" }) => {
    const [swatch, ...texts] = element.children;
    style(swatch, { "--color": `var(--${color})` });
    [name, value, told].forEach((text, place) => say(texts[place], text));
  });
}

/** Values over time as lines. What the pointer is over is told in the legend, else the newest values. */
export class LineChart {
  #series;
  #top;
  #format;
  #points = [];
  #span = 1;
  #over = null;

  /** series: [{ name, color, format, dashed }]; top: of the scale, if it is not to follow the values */
  constructor(container, series, { empty, top, format = String }) {
    this.#series = series;
    this.#top = top;
    this.#format = format;
    this.lines = series.map(({ color, dashed }) =>
      style(draw("path", { class: dashed ? "line dashed" : "line" }), { "--color": `var(--${color})` }),
    );
    this.cursor = draw("path", { class: "cursor" });
    this.picture = draw("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none" }, ...this.lines, this.cursor);
    this.most = make("span", { class: "most" });
    this.since = make("span");
    this.legend = make("ul", { class: "legend flat" });
    this.empty = make("p", { class: "empty" }, empty);
    const plot = make("div", { class: "plot" }, this.most, this.picture, this.empty);
    container.append(plot, make("div", { class: "times" }, this.since, make("span", {}, "now")), this.legend);
    plot.addEventListener("pointermove", (event) => this.#point(event));
    plot.addEventListener("pointerleave", () => this.#point(null));
  }

  /** points: [{ time, values }], a value or null for each series; span: so many seconds of them are drawn */
  show(points, span) {
    this.#span = span;
    this.#points = points.filter(({ time }) => points.at(-1).time - time <= span);
    const values = this.#points.flatMap((point) => point.values).filter((value) => value !== null);
    const top = this.#top ?? niceTop(Math.max(0, ...values));
    const up = (value) => 98 - (94 * value) / top;
    this.lines.forEach((line, place) => {
      line.setAttribute("d", path(this.#points, place, (time) => this.#across(time), up));
    });
    this.empty.hidden = values.length > 0;
    say(this.most, values.length ? this.#format(top) : "");
    say(this.since, span >= 120 ? `${Math.round(span / 60)} minutes ago` : `${Math.round(span)} seconds ago`);
    this.#tell();
  }

  #across(time) {
    return 100 - (100 * (this.#points.at(-1).time - time)) / this.#span;
  }

  #point(event) {
    const box = this.picture.getBoundingClientRect();
    this.#over = event && (100 * (event.clientX - box.left)) / box.width;
    this.#tell();
  }

  #tell() {
    const off = (point) => Math.abs(this.#across(point.time) - this.#over);
    const over = this.#over === null ? null : this.#points.toSorted((a, b) => off(a) - off(b))[0];
    const newest = (place) => this.#points.findLast((point) => point.values[place] !== null)?.values[place];
    this.cursor.setAttribute("d", over ? `M${this.#across(over.time)} 0V100` : "");
    legend(
      this.legend,
      this.#series.map(({ name, color, format }, place) => {
        return { name, color, value: format(over ? over.values[place] : newest(place)) };
      }),
    );
  }
}

/** buckets: [{ label, count, title }] */
export function histogram(container, buckets) {
  const most = Math.max(1, ...buckets.map((bucket) => bucket.count));
  const create = () => make("div", { class: "bucket" }, make("div", { class: "column" }), make("span"));
  keep(container, buckets, (bucket) => bucket.label, create, (element, { label, count, title }) => {
    style(element.firstChild, { "--height": count / most });
    say(element.lastChild, label);
    element.title = title;
  });
}

function path(points, place, across, up) {
  let drawn = "";
  let joined = false;
  for (const { time, values } of points) {
    const value = values[place];
    if (value !== null) drawn += `${joined ? "L" : "M"}${across(time).toFixed(2)} ${up(value).toFixed(2)}${joined ? "" : "h0"}`;
    joined = value !== null;
  }
  return drawn;
}

/** The least of 1, 2, 5, 10, 20, ... that is not below. */
function niceTop(value) {
  if (value <= 1) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * ten).find((top) => top >= value);
}
