// The requests that run, with stage and progress, and those that are over, with why they missed.

import { api, poll } from "./api.js";
import { h, setAttribute, setText } from "./dom.js";
import { bar, button, dialog, table } from "./parts.js";
import { clock, number, seconds, t, word } from "./words.js";

const LIVE_MS = 1000;

export function mount(main, { complain, say }) {
  const running = table(t("requests.running"), [
    { label: t("col.model"), cell: (one) => one.model, isHead: true },
    { label: t("col.client"), cell: (one) => one.client || "–" },
    { label: t("col.stage"), make: stage },
    { label: t("col.progress"), make: progress },
    { label: t("col.cached"), cell: (one) => number(one.cached_tokens), isNumber: true },
    { label: t("col.speed"), cell: (one) => speed(one.tokens_per_s), isNumber: true },
    { label: t("col.ttft"), cell: (one) => seconds(one.ttft_s), isNumber: true },
    { label: t("col.age"), cell: (one) => seconds(one.age_s), isNumber: true },
  ], (one) => one.id, t("requests.none"));
  const over = table(t("requests.over"), [
    { label: t("col.time"), cell: (one) => clock(one.time), isHead: true },
    { label: t("col.model"), cell: (one) => one.model },
    { label: t("col.client"), cell: (one) => one.client || "–" },
    { label: t("col.outcome"), cell: (one) => word("outcome", one.outcome) },
    { label: t("col.prompt"), cell: (one) => number(one.prompt_tokens), isNumber: true },
    { label: t("col.memory"), cell: (one) => number(one.cached_memory), isNumber: true },
    { label: t("col.disk"), cell: (one) => number(one.cached_disk), isNumber: true },
    { label: t("col.uncached"), cell: (one) => number(one.uncached), isNumber: true },
    { label: t("col.ttft"), cell: (one) => seconds(one.ttft_s), isNumber: true },
    { label: t("col.miss"), cell: (one) => [word("miss", one.miss), one.part ? place(one.part) : ""].filter(Boolean).join(": ") },
    { label: t("requests.why"), isQuiet: true, make: (first) => why(first, say) },
  ], (one) => one.id, t("requests.none_over"));
  main.append(
    h("h2", {}, t("requests.running")), running.node,
    h("h2", {}, t("requests.over")), h("p", { class: "hint" }, t("requests.no_text")), over.node);
  const polling = poll(async () => {
    const found = await api("GET", "/requests");
    running.update(found.requests);
    over.update(found.recent);
  }, LIVE_MS, complain);
  return () => polling.stop();
}

function speed(value) {
  return value === null ? "–" : t("unit.tokens_per_s", { number: number(value, value < 100 ? 1 : 0) });
}

function stage() {
  const node = h("span", { class: "badge" });
  return {
    node,
    update(one) {
      setText(node, word("stage", one.state));
      setAttribute(node, "data-stage", one.state);
    },
  };
}

function progress(first) {
  const made = bar(t("requests.progress_of", { model: first.model }));
  return {
    node: made.node,
    update(one) {
      if (one.state === "decode") {
        made.update(1, 1, t("requests.generated", { number: number(one.generated_tokens) }));
      } else if (one.to_prefill_tokens === null) {
        made.update(0, 1, t("requests.waits", { number: number(one.prompt_tokens) }));
      } else {
        const said = { done: number(one.prefilled_tokens), total: number(one.to_prefill_tokens) };
        made.update(one.prefilled_tokens, one.to_prefill_tokens, t("requests.prefilled", said));
      }
    },
  };
}

function why(first, say) {
  const name = t("requests.why_name", { time: clock(first.time), model: first.model });
  const node = button(t("requests.why"), () => explain(first.id, say), { kind: "small", name });
  return { node, update() {} };
}

async function explain(id, say) {
  let found;
  try {
    found = await api("GET", `/requests/${encodeURIComponent(id)}/miss`);
  } catch (error) {
    return say(error.message);
  }
  await dialog(t("why.title"), (close) => [
    h("p", {}, t("why.tokens", {
      prompt: number(found.prompt_tokens), memory: number(found.cached_memory),
      disk: number(found.cached_disk), uncached: number(found.uncached),
    })),
    h("p", {}, h("strong", {}, word("miss", found.miss)), ": ", t(`miss.${found.miss}.means`)),
    found.token === null ? null : h("p", {}, t("why.token", { token: number(found.token), place: place(found.place) })),
    found.change === null ? null : h("p", {}, t("why.change", { change: word("change", found.change) })),
    found.note ? h("p", { lang: "en", class: "hint" }, found.note) : null,
    parts(found.parts),
    h("p", { class: "hint" }, t("why.more"), " ", h("code", {}, `omlx cache inspect --request ${found.id}`)),
    h("div", { class: "row" }, button(t("act.close"), () => close(null))),
  ].filter((one) => one !== null));
}

// Where a prompt left what was stored: "tool 3", "message 2 (user)", "template".
function place(text) {
  if (text === null) return "–";
  const [kind, number] = text.replace("system block", "system").split(" ");
  return number === undefined ? word("place", kind) : `${word("place", kind)} ${number}`;
}

function parts(rows) {
  const made = table(t("why.parts"), [
    { label: t("col.part"), cell: (one) => word("piece", one.part), isHead: true },
    { label: t("col.tokens"), cell: (one) => number(one.tokens), isNumber: true },
    { label: t("col.cached"), cell: (one) => number(one.cached), isNumber: true },
    { label: t("col.uncached"), cell: (one) => number(one.uncached), isNumber: true },
  ], (one) => one.part, t("why.no_parts"));
  made.update(rows);
  return made.node;
}
