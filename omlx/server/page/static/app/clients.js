// How each client is set up for a model of this server: as one command, or by hand.

import { api } from "./api.js";
import { h, setText } from "./dom.js";
import { button, copyButton, field, options, table } from "./parts.js";
import { number, t, word } from "./words.js";

export function mount(main, { complain, say }) {
  let isOver = false;
  const model = field(t("col.model"), h("select", { onchange: () => refresh() }), t("clients.model_hint"));
  const list = table(t("clients.known"), [
    { label: t("col.client"), cell: (one) => one.title, isHead: true },
    { label: t("col.kind"), cell: (one) => word("kind", one.kind) },
    { label: t("col.api"), cell: (one) => one.endpoint },
    { label: t("col.needs"), cell: (one) => (one.needed_tokens ? number(one.needed_tokens) : "–"), isNumber: true },
    { label: t("col.fit"), cell: (one) => (one.fit ? word("fit", one.fit) : "–") },
    { label: t("clients.recipe"), isQuiet: true, make: (first) => show(first) },
  ], (one) => one.name, t("clients.none"));
  const recipe = h("section", { hidden: true, tabindex: "-1", "aria-label": t("clients.recipe") });
  main.append(h("p", { class: "hint" }, t("clients.note")), model.node, list.node, recipe);

  function show(first) {
    const node = button(t("clients.recipe"), () => explain(first), { kind: "small", name: t("clients.recipe_name", { client: first.title }) });
    return { node, update() {} };
  }
  async function explain(client) {
    let found;
    try {
      found = await api("GET", `/clients/${encodeURIComponent(client.name)}?model=${encodeURIComponent(model.input.value)}`);
    } catch (error) {
      say(error.message);
      return;
    }
    const text = h("pre", { class: "code", tabindex: "0", role: "region", "aria-label": t("clients.by_hand") });
    setText(text, found.text);
    recipe.hidden = false;
    const byCommand = client.kind !== "agent" ? [] : [
      h("h3", {}, t("clients.by_command")),
      h("p", {}, h("code", { class: "value" }, found.command)),
      h("div", { class: "row" }, copyButton(() => found.command, say)),
    ];
    recipe.replaceChildren(
      h("h2", {}, t("clients.title", { client: client.title, model: found.model })),
      ...byCommand,
      h("h3", {}, t("clients.by_hand")),
      found.has_placeholder ? h("p", { class: "hint" }, t("clients.placeholder"), " ", h("code", {}, "YOUR_API_KEY")) : "",
      client.install ? h("p", { class: "hint" }, t("clients.install"), " ", h("code", {}, client.install)) : "",
      text, h("div", { class: "row" }, copyButton(() => found.text, say)));
    recipe.focus();
  }
  async function refresh() {
    try {
      const chosen = model.input.value;
      const found = await api("GET", `/clients${chosen ? `?model=${encodeURIComponent(chosen)}` : ""}`);
      if (isOver) return;
      options(model.input, found.models.map((one) => [one.name, t("clients.model_window", { model: one.name, window: number(one.window) })]));
      recipe.hidden = true;
      list.update(found.clients);
      if (!chosen && model.input.value) await refresh();
    } catch (error) {
      if (!isOver) complain(error);
    }
  }
  refresh();
  return () => {
    isOver = true;
  };
}
