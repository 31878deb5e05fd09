// Elements from names and texts. Text only ever becomes text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

/** make("p", {class: "quiet", title: "..."}, "text", child, ...) */
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** The element shows this text; untouched if it does already, so that a selection in it survives. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Custom properties: inline styles are forbidden to the page, properties set by its script are not. */
export function style(element, properties) {
  for (const [name, value] of Object.entries(properties)) element.style.setProperty(name, value);
  return element;
}

/** The container has one child for each item, by key: those that stay are kept and updated. */
export function keep(container, items, keyOf, create, update) {
  const old = new Map([...container.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, place) => {
    const key = String(keyOf(item));
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (container.children[place] !== child) container.insertBefore(child, container.children[place] ?? null);
  });
  for (const gone of old.values()) gone.remove();
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
