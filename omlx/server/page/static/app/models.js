// The models: loaded, unloaded, pinned, and fetched while the server runs.

import { api, poll } from "./api.js";
import { h, setAttribute, setText } from "./dom.js";
import { bar, button, field, table } from "./parts.js";
import { bytes, number, seconds, t, word } from "./words.js";

const LIVE_MS = 1500;
const CAN_LOAD = ["unloaded", "stopped", "failed"];
const CAN_UNLOAD = ["ready", "loading", "starting"];

export function mount(main, { complain, say }) {
  let polling = null;
  const act = async (verb, model, done) => {
    try {
      await api("POST", `/models/${verb}`, { model });
      say(done);
    } catch (error) {
      say(error.message);
    }
    polling.now();
  };
  const served = table(t("models.served"), [
    { label: t("col.model"), make: names, isHead: true },
    { label: t("col.state"), make: state },
    { label: t("col.weights"), cell: (one) => bytes(one.weight_bytes), isNumber: true },
    { label: t("col.quantization"), cell: (one) => one.quantization ?? "–" },
    { label: t("col.window"), cell: (one) => number(one.window), isNumber: true },
    { label: t("col.requests"), cell: (one) => number(one.requests), isNumber: true },
    { label: t("col.load_time"), cell: (one) => (one.load_s ? seconds(one.load_s) : "–"), isNumber: true },
    { label: t("models.acts"), isQuiet: true, make: (first) => acts(first, act) },
  ], (one) => one.id, t("models.none"));
  const refused = table(t("models.refused"), [
    { label: t("col.model"), cell: ([id]) => id, isHead: true },
    { label: t("col.reason"), cell: ([, reason]) => reason },
  ], ([id]) => id, "");
  const refusedTitle = h("h2", {}, t("models.refused"));
  const form = pullForm(say, () => polling.now());
  const pulls = pullTable(say, () => polling.now());
  main.append(
    h("h2", {}, t("models.served")), h("p", { class: "hint" }, t("models.pin_note")), served.node,
    h("h2", {}, t("models.pull")), form, pulls.node, refusedTitle, refused.node);
  let announced = new Map();
  polling = poll(async () => {
    const [found, fetched] = await Promise.all([api("GET", "/models"), api("GET", "/pulls")]);
    served.update(found.models);
    pulls.update(fetched.pulls);
    const others = Object.entries(found.refused);
    refused.update(others);
    refusedTitle.hidden = refused.node.hidden = others.length === 0;
    announced = announce(found.models, announced, say);
  }, LIVE_MS, complain);
  return () => polling.stop();
}

// What a model has come to, once it is there: those who can't see the table hear it.
function announce(models, before, say) {
  for (const one of models) {
    const was = before.get(one.id);
    if (was !== undefined && was !== one.state && ["ready", "unloaded", "failed"].includes(one.state)) {
      say(t("models.became", { model: one.id, state: word("state", one.state) }));
    }
  }
  return new Map(models.map((one) => [one.id, one.state]));
}

function names(first) {
  const id = h("span", { class: "strong" }, first.id);
  const others = h("span", { class: "hint block" });
  return {
    node: h("span", {}, id, others),
    update(one) {
      setText(others, [...one.names.filter((name) => name !== one.id), one.path].join(" · "));
    },
  };
}

function state() {
  const shown = h("span", { class: "badge" });
  const pin = h("span", { class: "badge pin" }, t("models.pinned"));
  const fault = h("span", { class: "hint block", lang: "en" });
  return {
    node: h("span", {}, shown, " ", pin, fault),
    update(one) {
      setText(shown, word("state", one.is_stalled ? "stalled" : one.state));
      setAttribute(shown, "data-state", one.is_stalled ? "stalled" : one.state);
      pin.hidden = !one.is_pinned;
      setText(fault, one.error ?? "");
    },
  };
}

function acts(first, act) {
  const id = first.id;
  let now = first;
  const load = button(t("act.load"), () => act("load", id, t("models.loading", { model: id })),
    { kind: "small", name: t("models.load_name", { model: id }) });
  const unload = button(t("act.unload"), () => act("unload", id, t("models.unloading", { model: id })),
    { kind: "small", name: t("models.unload_name", { model: id }) });
  const pin = button(t("act.pin"), () => {
    const verb = now.is_pinned ? "unpin" : "pin";
    act(verb, id, t(`models.said_${verb}`, { model: id }));
  }, { kind: "small", name: t("models.pin_name", { model: id }) });
  return {
    node: h("span", { class: "row tight" }, load, unload, pin),
    update(one) {
      now = one;
      // Not hidden: what has the focus must not vanish under it.
      setAttribute(load, "aria-disabled", CAN_LOAD.includes(one.state) ? null : "true");
      setAttribute(unload, "aria-disabled", CAN_UNLOAD.includes(one.state) && one.requests === 0 ? null : "true");
      setAttribute(pin, "aria-pressed", one.is_pinned ? "true" : "false");
    },
  };
}

function pullForm(say, after) {
  const input = h("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: "mlx-community/Qwen3-0.6B-4bit" });
  const name = field(t("models.pull_name"), input, t("models.pull_hint"));
  return h("form", {
    novalidate: true,
    class: "line",
    onsubmit: async (event) => {
      event.preventDefault();
      name.fail(null);
      const model = input.value.trim();
      if (!model) return name.fail(t("models.pull_empty"));
      try {
        await api("POST", "/pulls", { model });
        say(t("models.pulling", { model }));
        input.value = "";
      } catch (error) {
        name.fail(error.message);
      }
      after();
    },
  }, name.node, h("button", { type: "submit", class: "primary" }, t("act.pull")));
}

function pullTable(say, after) {
  return table(t("models.pulls"), [
    { label: t("col.model"), cell: (one) => one.model, isHead: true },
    { label: t("col.state"), cell: (one) => [word("pull", one.state), one.state === "running" && one.stage ? word("pullstage", one.stage) : ""].filter(Boolean).join(": ") },
    { label: t("col.progress"), make: pullProgress },
    { label: t("col.result"), cell: (one) => one.error ?? (one.served_as ? t("models.served_as", { model: one.served_as }) : "–") },
    {
      label: t("models.acts"), isQuiet: true, make: (first) => {
        const stop = button(t("act.cancel"), async () => {
          try {
            await api("DELETE", `/pulls/${first.number}`);
            say(t("models.pull_cancelled", { model: first.model }));
          } catch (error) {
            say(error.message);
          }
          after();
        }, { kind: "small", name: t("models.cancel_name", { model: first.model }) });
        return { node: stop, update: (one) => setAttribute(stop, "aria-disabled", one.state === "running" ? null : "true") };
      },
    },
  ], (one) => one.number, t("models.no_pulls"));
}

function pullProgress(first) {
  const made = bar(t("models.progress_of", { model: first.model }));
  return {
    node: made.node,
    update(one) {
      if (one.total_bytes === 0) return one.state === "running" ? made.unknown("") : made.update(one.state === "done" ? 1 : 0, 1, "");
      const said = t("use.of", { used: bytes(one.done_bytes), total: bytes(one.total_bytes) });
      return made.update(one.done_bytes, one.total_bytes, said);
    },
  };
}
