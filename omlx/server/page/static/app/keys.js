// The API keys: which there are, a new one that is shown this once, one less.

import { api } from "./api.js";
import { h } from "./dom.js";
import { button, confirmed, copyButton, dialog, field, options, table } from "./parts.js";
import { day, number, t } from "./words.js";

const LIMITS = ["requests_per_minute", "tokens_per_minute", "concurrent"];
const DAY_S = 86400;

export function mount(main, { complain, say }) {
  let isOver = false;
  const list = table(t("keys.known"), [
    { label: t("col.name"), cell: (one) => one.name, isHead: true },
    { label: t("col.key"), cell: (one) => `omlx-${one.prefix}…` },
    { label: t("col.scope"), cell: (one) => t(`scope.${one.scope}`) },
    ...LIMITS.map((name) => ({ label: t(`limit.${name}`), cell: (one) => number(one[name]), isNumber: true })),
    { label: t("col.created"), cell: (one) => day(one.created) },
    { label: t("col.expires"), cell: (one) => (one.expires === null ? t("keys.never") : one.has_expired ? t("keys.expired", { day: day(one.expires) }) : day(one.expires)) },
    { label: t("keys.acts"), isQuiet: true, make: (first) => revoke(first) },
  ], (one) => one.name, t("keys.none"));
  const refresh = async () => {
    try {
      const found = await api("GET", "/keys");
      if (!isOver) list.update(found.keys);
    } catch (error) {
      if (!isOver) complain(error);
    }
  };
  function revoke(first) {
    const node = button(t("act.revoke"), async () => {
      const name = first.name;
      if (!(await confirmed(t("keys.revoke_title", { name }), t("keys.revoke_text"), t("act.revoke")))) return;
      try {
        await api("DELETE", `/keys/${encodeURIComponent(name)}`);
        say(t("keys.revoked", { name }));
      } catch (error) {
        say(error.message);
      }
      await refresh();
    }, { kind: "small", name: t("keys.revoke_name", { name: first.name }) });
    return { node, update() {} };
  }
  main.append(
    h("h2", {}, t("keys.known")), list.node,
    h("h2", {}, t("keys.create")), h("p", { class: "hint" }, t("keys.note")), form(say, refresh));
  refresh();
  return () => {
    isOver = true;
  };
}

function form(say, refresh) {
  const name = field(t("col.name"), h("input", { type: "text", autocomplete: "off", spellcheck: "false" }), t("keys.name_hint"));
  const scope = field(t("col.scope"), h("select"), t("keys.scope_hint"));
  options(scope.input, ["inference", "admin"].map((one) => [one, t(`scope.${one}`)]));
  const limits = Object.fromEntries(LIMITS.map((one) =>
    [one, field(t(`limit.${one}`), h("input", { type: "number", min: 1, inputmode: "numeric" }))]));
  const days = field(t("keys.days"), h("input", { type: "number", min: 1, inputmode: "numeric" }), t("keys.days_hint"));
  const fields = { "$.name": name, "$.expires_in_s": days, ...Object.fromEntries(LIMITS.map((one) => [`$.${one}`, limits[one]])) };
  const node = h("form", {
    novalidate: true,
    onsubmit: async (event) => {
      event.preventDefault();
      for (const one of Object.values(fields)) one.fail(null);
      const body = { name: name.input.value.trim(), scope: scope.input.value };
      for (const one of LIMITS) if (limits[one].input.value !== "") body[one] = Number(limits[one].input.value);
      if (days.input.value !== "") body.expires_in_s = Number(days.input.value) * DAY_S;
      let made;
      try {
        made = await api("POST", "/keys", body);
      } catch (error) {
        (fields[error.param] ?? name).fail(error.message);
        return;
      }
      node.reset();
      await refresh();
      await showOnce(made, say);
    },
  }, h("div", { class: "line" }, name.node, scope.node, days.node, LIMITS.map((one) => limits[one].node)),
  h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, t("act.create"))));
  return node;
}

function showOnce(made, say) {
  return dialog(t("keys.made", { name: made.name }), (close) => {
    const shown = h("code", { class: "secret", tabindex: "0", "aria-label": t("col.key") }, made.key);
    return [
      h("p", {}, t("keys.once")),
      h("p", {}, shown),
      h("div", { class: "row" }, copyButton(() => made.key, say), button(t("act.close"), () => close(null))),
    ];
  });
}
