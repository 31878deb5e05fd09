// Numbers as people read them.

export const count = (value) => Math.round(value).toLocaleString("en");
export const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.0995 ? 1 : 0)}%`;
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (size >= 1024 && place < units.length - 1) {
    size /= 1024;
    place += 1;
  }
  return `${place && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[place]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${(1000 * value).toPrecision(2).replace(/\.0$/, "")} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1).replace(/\.?0+$/, "")} s`;
  return `${(value / 60).toFixed(1).replace(/\.0$/, "")} min`;
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? value.toFixed(1) : count(value);
}
