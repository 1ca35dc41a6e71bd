// What both tiers hold by model, and dropping of it.

import { api, poll } from "./api.js";
import { h } from "./dom.js";
import { button, confirmed, field, options, table } from "./parts.js";
import { bytes, number, t } from "./words.js";

const LIVE_MS = 3000;
const FIELDS = { "$.max_size": "size", "$.older_than": "age", "$.model": "model" };

export function mount(main, { complain, say }) {
  const note = h("p", { class: "warning", hidden: true }, t("cache.off"));
  const held = table(t("cache.held"), [
    { label: t("col.model"), cell: (one) => one.id, isHead: true },
    { label: t("cache.memory"), cell: (one) => tier(one.memory) },
    { label: t("cache.disk"), cell: (one) => tier(one.disk) },
    { label: t("cache.written"), cell: (one) => bytes(one.counters.bytes_written), isNumber: true },
    { label: t("cache.evicted"), cell: (one) => bytes(one.counters.bytes_evicted), isNumber: true },
    { label: t("cache.hits"), cell: (one) => number(one.counters.cached_memory_tokens + one.counters.cached_disk_tokens), isNumber: true },
    { label: t("cache.bad"), cell: (one) => number(Object.values(one.counters.bad).reduce((sum, num) => sum + num, 0)), isNumber: true },
    { label: t("cache.note"), cell: (one) => one.cache_note || "–" },
  ], (one) => one.id, t("cache.none"));
  const prune = pruneForm(say, () => polling.now());
  main.append(
    note, h("h2", {}, t("cache.held")), held.node,
    h("h2", {}, t("cache.prune")), h("p", { class: "hint" }, t("cache.prune_note")), prune.node,
    h("p", {}, h("a", { href: "#/requests" }, t("cache.why"))));
  const polling = poll(async () => {
    const found = await api("GET", "/cache");
    note.hidden = found.is_on;
    held.update(found.models);
    prune.know(found.models.map((one) => one.id));
  }, LIVE_MS, complain);
  return () => polling.stop();
}

function tier(one) {
  return t("cache.tier", { blocks: number(one.blocks), bytes: bytes(one.bytes), budget: bytes(one.budget_bytes) });
}

function pruneForm(say, after) {
  const model = field(t("col.model"), h("select"));
  const size = field(t("cache.max_size"), h("input", { type: "text", autocomplete: "off", placeholder: "10GB" }), t("cache.size_hint"));
  const age = field(t("cache.older_than"), h("input", { type: "text", autocomplete: "off", placeholder: "7d" }), t("cache.age_hint"));
  const fields = { model, size, age };
  const outcome = h("p", { class: "outcome" });
  const wanted = () => {
    const body = {};
    if (model.input.value) body.model = model.input.value;
    if (size.input.value.trim()) body.max_size = size.input.value.trim();
    if (age.input.value.trim()) body.older_than = age.input.value.trim();
    if (Object.keys(body).length === 0) body.everything = true;
    return body;
  };
  const ask = async (isDryRun) => {
    for (const one of Object.values(fields)) one.fail(null);
    try {
      return await api("POST", "/cache/prune", { ...wanted(), is_dry_run: isDryRun });
    } catch (error) {
      const wrong = fields[FIELDS[error.param]];
      if (wrong) wrong.fail(error.message);
      else say(error.message);
      return null;
    }
  };
  const show = (found) => {
    const values = { files: number(found.num_files), bytes: bytes(found.num_bytes), failed: number(found.num_failed) };
    const text = t(found.is_dry_run ? "cache.would" : found.num_failed ? "cache.some_failed" : "cache.pruned", values);
    outcome.textContent = text;
    say(text);
  };
  const node = h("form", {
    novalidate: true,
    onsubmit: async (event) => {
      event.preventDefault();
      const plan = await ask(true);
      if (plan === null) return;
      const text = t("cache.confirm", { files: number(plan.num_files), bytes: bytes(plan.num_bytes) });
      if (!(await confirmed(t("cache.prune"), text, t("act.prune")))) return;
      const done = await ask(false);
      if (done !== null) show(done);
      after();
    },
  },
  h("div", { class: "line" }, model.node, size.node, age.node),
  h("div", { class: "row" },
    button(t("act.preview"), async () => {
      const plan = await ask(true);
      if (plan !== null) show(plan);
    }),
    h("button", { type: "submit", class: "danger" }, t("act.prune"))),
  outcome);
  return {
    node,
    know(ids) {
      options(model.input, [["", t("cache.all_models")], ...ids.map((id) => [id, id])]);
    },
  };
}
