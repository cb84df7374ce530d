// The elements of the page: found by their ids, made, and filled with text.

export const $ = (id) => document.getElementById(id);

export function element(kind, properties, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

// Text that is there already is not put again: a screen reader and the layout have nothing to do then.
export function put(into, text) {
  if (into.textContent !== text) into.textContent = text;
}
