// Builds elements. Text becomes text nodes only, so nothing that a server says is ever markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined));
  return node;
}

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function setText(node, text) {
  const shown = String(text);
  if (node.textContent !== shown) node.textContent = shown;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

// Keeps the children of a parent as items say, each made once: what has the focus keeps it.
// `create` returns {node, update}; the key of an item is what it is known by.
export function keyed(parent, keyOf, create) {
  const kept = new Map();
  return (items) => {
    const seen = new Set();
    let at = null;
    for (const item of items) {
      const key = String(keyOf(item));
      if (seen.has(key)) continue;
      seen.add(key);
      if (!kept.has(key)) kept.set(key, create(item));
      const { node, update } = kept.get(key);
      update(item);
      const next = at === null ? parent.firstChild : at.nextSibling;
      if (next !== node) parent.insertBefore(node, next);
      at = node;
    }
    for (const [key, { node }] of kept) {
      if (!seen.has(key)) {
        node.remove();
        kept.delete(key);
      }
    }
  };
}

let counter = 0;
export function uniqueId(prefix) {
  counter += 1;
  return `${prefix}-${counter}`;
}
