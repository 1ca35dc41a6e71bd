// Every setting, who set it, what the file says instead, and changing it.

import { api } from "./api.js";
import { h, setText } from "./dom.js";
import { button, field, options } from "./parts.js";
import { t, word } from "./words.js";

export function mount(main, { complain, say }) {
  let isOver = false;
  const pending = h("p", { class: "warning", hidden: true });
  const faults = h("ul", { class: "warning", hidden: true, lang: "en" });
  const groups = h("div");
  const filter = field(t("settings.filter"), h("input", { type: "search", autocomplete: "off", oninput: () => show() }));
  const count = h("p", { class: "hint", role: "status" });
  main.append(h("p", { class: "hint" }, t("settings.note")), pending, faults, filter.node, count, groups);
  let rows = [];

  const show = () => {
    const wanted = filter.input.value.trim().toLowerCase();
    let num = 0;
    for (const one of rows) {
      one.node.hidden = !one.text.includes(wanted);
      num += one.node.hidden ? 0 : 1;
    }
    for (const group of groups.children) group.hidden = [...group.querySelectorAll("li")].every((one) => one.hidden);
    setText(count, t("settings.count", { number: num }));
  };
  const tell = (found) => {
    const waiting = Object.keys(found.pending);
    pending.hidden = waiting.length === 0;
    setText(pending, t("settings.pending", { names: waiting.join(", ") }));
    faults.hidden = found.problems.length === 0;
    faults.replaceChildren(...found.problems.map((one) => h("li", {}, one)));
  };
  const refresh = async () => {
    const found = await api("GET", "/settings");
    if (isOver) return;
    tell(found);
    for (const one of rows) one.update(found);
  };

  (async () => {
    try {
      const found = await api("GET", "/settings");
      if (isOver) return;
      const paths = Object.keys(found.settings);
      rows = paths.map((path) => setting(path, found, { say, refresh }));
      const names = [...new Set(paths.map(groupOf))];
      groups.replaceChildren(...names.map((name) => h("section", { "aria-label": name || t("settings.general") },
        h("h2", {}, name || t("settings.general")),
        h("ul", { class: "settings" }, rows.filter((one) => groupOf(one.path) === name).map((one) => one.node)))));
      tell(found);
      show();
    } catch (error) {
      complain(error);
    }
  })();
  return () => {
    isOver = true;
  };
}

function groupOf(path) {
  return path.includes(".") ? path.slice(0, path.indexOf(".")) : "";
}

function setting(path, first, { say, refresh }) {
  const about = first.schema[path];
  const value = h("code", { class: "value" });
  const origin = h("span", { class: "badge" });
  const where = h("span", { class: "hint" });
  const later = h("p", { class: "later", hidden: true });
  const editor = h("div");
  const open = button(t("act.edit"), () => edit(), { kind: "small", name: t("settings.edit_name", { name: path }) });
  open.setAttribute("aria-expanded", "false");
  const node = h("li", { class: "setting" },
    h("div", { class: "setting-head" }, h("code", { class: "path" }, path), value, origin, where,
      about.is_secret ? h("span", { class: "hint" }, t("settings.secret")) : open),
    h("p", { class: "hint", lang: "en" }, about.help), later, editor);
  let found = first;

  const close = () => {
    editor.replaceChildren();
    open.setAttribute("aria-expanded", "false");
    open.focus();
  };
  const edit = () => {
    if (editor.firstChild) return close();
    open.setAttribute("aria-expanded", "true");
    const shown = found.pending[path]?.shown ?? found.schema[path].shown;
    const input = control(about, shown);
    const made = field(t("settings.new_value", { name: path }), input, t("settings.default", { value: about.default }));
    const send = async (method, body) => {
      made.fail(null);
      try {
        const done = await api(method, `/settings/${encodeURIComponent(path)}`, body);
        close();
        say(t(done.is_shadowed ? "settings.shadowed" : done.needs_restart ? "settings.written" : "settings.same",
          { name: path, value: done.shown, origin: done.origin.where }));
        await refresh();
      } catch (error) {
        made.fail(error.message);
      }
    };
    editor.replaceChildren(h("form", {
      novalidate: true,
      class: "editor",
      onsubmit: (event) => {
        event.preventDefault();
        send("POST", { value: input.value });
      },
      onkeydown: (event) => {
        if (event.key === "Escape") close();
      },
    }, made.node, h("div", { class: "row" },
      h("button", { type: "submit", class: "primary" }, t("act.save")),
      button(t("act.unset"), () => send("DELETE")),
      button(t("act.cancel"), close))));
    input.focus();
  };
  const update = (given) => {
    found = given;
    const now = given.settings[path];
    setText(value, given.schema[path].shown);
    setText(origin, word("origin", now.origin.kind));
    origin.dataset.origin = now.origin.kind;
    setText(where, now.origin.kind === "default" ? "" : now.origin.where);
    const then = given.pending[path];
    later.hidden = !then;
    if (then) setText(later, t("settings.later", { value: then.shown, origin: then.origin.where }));
  };
  update(first);
  return { path, node, update, text: `${path} ${about.help}`.toLowerCase() };
}

function control(about, shown) {
  const isClosed = about.choices.length > 0 && ["bool", "text"].includes(about.kind);
  if (!isClosed) {
    const input = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
    input.value = shown === "none" ? "" : shown;
    return input;
  }
  const select = h("select");
  options(select, about.choices.map((one) => [one, one]), shown);
  if (about.choices.includes(shown)) select.value = shown;
  return select;
}
