// Pieces that several sections are made of: tables, fields, dialogs, bars, badges.

import { h, keyed, setAttribute, setText, uniqueId } from "./dom.js";
import { t } from "./words.js";

// A table whose rows are kept by key. A column is {label, cell(item) -> text, isNumber, isHead}, or
// has make(item) -> {node, update} where a cell is more than text. On a phone each row is a card,
// and the roles say that it is a table all the same.
export function table(caption, columns, keyOf, empty) {
  const body = h("tbody", { role: "rowgroup" });
  const none = h("p", { class: "empty", hidden: true }, empty);
  const heads = columns.map((one) =>
    h("th", { scope: "col", role: "columnheader", class: one.isNumber ? "num" : null },
      one.isQuiet ? h("span", { class: "unseen" }, one.label) : one.label));
  const whole = h("table", { role: "table" },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body);
  const update = keyed(body, keyOf, (first) => row(columns, first));
  return {
    node: h("div", { class: "table" }, whole, none),
    update(items) {
      update(items);
      whole.hidden = items.length === 0;
      none.hidden = items.length !== 0;
    },
  };
}

function row(columns, first) {
  const cells = columns.map((one) => {
    const made = one.make ? one.make(first) : text(one);
    const kind = one.isHead ? "th" : "td";
    const node = h(kind, {
      role: one.isHead ? "rowheader" : "cell",
      scope: one.isHead ? "row" : null,
      class: [one.isNumber ? "num" : "", one.isQuiet ? "acts" : ""].join(" ").trim() || null,
      "data-label": one.label,
    }, made.node);
    return { node, update: made.update };
  });
  return {
    node: h("tr", { role: "row" }, cells.map((one) => one.node)),
    update: (item) => cells.forEach((one) => one.update(item)),
  };
}

function text(column) {
  const node = h("span");
  return { node, update: (item) => setText(node, column.cell(item)) };
}

// A label with its input, a hint and the place of an error; `input` is any control.
export function field(label, input, hint = "") {
  const id = uniqueId("field");
  input.id = id;
  const error = h("p", { class: "error", id: `${id}-error`, hidden: true });
  const more = hint ? h("p", { class: "hint", id: `${id}-hint` }, hint) : null;
  const described = more ? `${id}-hint` : null;
  setAttribute(input, "aria-describedby", described);
  return {
    node: h("div", { class: "field" }, h("label", { for: id }, label), input, more, error),
    input,
    fail(message) {
      setText(error, message ?? "");
      error.hidden = !message;
      setAttribute(input, "aria-invalid", message ? "true" : null);
      const ids = [described, message ? error.id : null].filter(Boolean).join(" ");
      setAttribute(input, "aria-describedby", ids || null);
      if (message) input.focus();
    },
  };
}

// A button that is disabled for the moment keeps the focus and says so; it only does nothing.
export function button(label, onclick, { kind = "", name = null } = {}) {
  const act = (event) => {
    if (event.currentTarget.getAttribute("aria-disabled") !== "true") onclick(event);
  };
  return h("button", { type: "button", class: kind || null, "aria-label": name, onclick: act }, label);
}

export function options(select, items, chosen) {
  const same = items.length === select.options.length
    && items.every(([value, label], at) => select.options[at].value === value && select.options[at].textContent === label);
  if (same) return;
  const before = chosen ?? select.value;
  select.replaceChildren(...items.map(([value, label]) => h("option", { value }, label)));
  if (items.some(([value]) => value === before)) select.value = before;
}

export function badge(kind, label) {
  return h("span", { class: `badge ${kind}` }, label);
}

// A bar with its numbers in words beside it.
export function bar(label) {
  const meter = h("progress", { max: 1, value: 0, "aria-label": label });
  const words = h("span", { class: "bar-words" });
  return {
    node: h("div", { class: "bar" }, meter, words),
    update(done, total, said) {
      const part = total > 0 ? Math.min(1, Math.max(0, done / total)) : 0;
      if (meter.value !== part) meter.value = part;
      setText(words, said);
    },
    unknown(said) {
      meter.removeAttribute("value");
      setText(words, said);
    },
  };
}

// A modal dialog; resolves once it is closed, with what `close` was given, null by Escape.
export function dialog(title, makeBody) {
  return new Promise((resolve) => {
    const id = uniqueId("dialog");
    let value = null;
    const node = h("dialog", { "aria-labelledby": id });
    const close = (given) => {
      value = given;
      node.close();
    };
    const before = document.activeElement;
    node.append(h("h2", { id }, title), ...[makeBody(close)].flat());
    node.addEventListener("close", () => {
      node.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      resolve(value);
    });
    document.body.append(node);
    node.showModal();
  });
}

export function confirmed(title, text, act) {
  return dialog(title, (close) => [
    h("p", {}, text),
    h("div", { class: "row" },
      button(act, () => close(true), { kind: "danger" }),
      button(t("act.cancel"), () => close(false))),
  ]);
}

export function copyButton(getText, say) {
  return button(t("act.copy"), async () => {
    try {
      await navigator.clipboard.writeText(getText());
      say(t("note.copied"));
    } catch {
      say(t("note.not_copied"));
    }
  });
}
