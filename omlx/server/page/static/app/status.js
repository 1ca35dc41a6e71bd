// The three figures that lead, the curves, and what the server has to do with.

import { api, poll } from "./api.js";
import { chart } from "./chart.js";
import { h, keyed, setAttribute, setText } from "./dom.js";
import { bar } from "./parts.js";
import { bytes, number, percent, seconds, t, word } from "./words.js";

const LIVE_MS = 2000;
const MAX_CLIENTS = 5;

export function mount(main, { complain }) {
  const about = h("p", { class: "about" });
  const cards = { uncached: card("lead.uncached"), ttft: card("lead.ttft"), disk: card("lead.disk") };
  const hits = chart(t("chart.hits"), t("chart.hits_note"), percent, 1);
  const waits = chart(t("chart.ttft"), t("chart.ttft_note"), seconds, 0);
  const counts = facts(["active", "waiting", "finished", "failed", "aborted"]);
  const speeds = facts(["prefill", "decode"]);
  const use = { memory: bar(t("use.memory")), disk: bar(t("use.disk")), machine: bar(t("use.machine")) };
  main.append(
    about,
    h("h2", {}, t("status.leading")),
    h("div", { class: "cards" }, Object.values(cards).map((one) => one.node)),
    h("h2", {}, t("status.curves")),
    h("div", { class: "charts" }, hits.node, waits.node),
    h("h2", {}, t("status.work")),
    h("div", { class: "halves" },
      h("section", { "aria-label": t("section.requests") }, h("h3", {}, t("section.requests")), counts.node),
      h("section", { "aria-label": t("status.speed") }, h("h3", {}, t("status.speed")), speeds.node),
      h("section", { "aria-label": t("status.use") }, h("h3", {}, t("status.use")),
        Object.entries(use).map(([name, one]) => h("div", { class: "use" }, h("p", {}, t(`use.${name}`)), one.node)))));

  const polling = poll(async () => {
    const [status, lead, turns] = await Promise.all([api("GET", "/status"), api("GET", "/lead"), api("GET", "/turns")]);
    const words = t("status.about", { address: status.address, uptime: seconds(status.uptime_s) });
    setText(about, status.is_draining ? `${words} · ${t("status.draining")}` : words);
    showLead(cards, lead.figures);
    hits.update(turns.turns.filter((one) => one.prompt_tokens > 0).map((one) =>
      ({ time: one.time, value: one.cached_tokens / one.prompt_tokens, weight: one.prompt_tokens })));
    waits.update(turns.turns.filter((one) => one.ttft_s !== null).map((one) =>
      ({ time: one.time, value: one.ttft_s, weight: 1 })));
    counts.update(status.requests, number);
    speeds.update(status.tokens_per_s, (value) => t("unit.tokens_per_s", { number: number(value, value < 100 ? 1 : 0) }));
    showUse(use, status);
  }, LIVE_MS, complain);
  return () => {
    polling.stop();
    hits.stop();
    waits.stop();
  };
}

function card(key) {
  const verdict = h("span", { class: "badge" });
  const value = h("p", { class: "big" });
  const list = h("ul", { class: "pieces" });
  const node = h("article", { class: "card" },
    h("div", { class: "card-head" }, h("h3", {}, t(key)), verdict), value, list,
    h("p", { class: "hint" }, t(`${key}_note`)));
  const update = keyed(list, (one) => one.key, () => {
    const name = h("span");
    const said = h("span", { class: "piece-value" });
    const judged = h("span", { class: "badge small" });
    return {
      node: h("li", {}, name, said, judged),
      update(one) {
        setText(name, one.name);
        setText(said, one.said);
        judge(judged, one.verdict);
      },
    };
  });
  return {
    node,
    update(worst, big, pieces) {
      judge(verdict, worst);
      setAttribute(node, "data-verdict", worst);
      setText(value, big);
      update(pieces);
    },
  };
}

function judge(node, verdict) {
  node.hidden = !verdict;
  setText(node, verdict ? t(`verdict.${verdict}`) : "");
  setAttribute(node, "data-verdict", verdict);
}

function showLead(cards, figures) {
  const { uncached_per_turn: uncached, ttft_s: ttft, disk_day: disk } = figures;
  const clients = uncached.clients.slice(0, MAX_CLIENTS).map((one) => ({
    key: one.client, name: one.client || t("lead.unknown_client"), said: number(one.mean), verdict: one.verdict,
  }));
  cards.uncached.update(uncached.verdict, uncached.mean === null ? t("lead.no_turns") : number(uncached.mean), clients);
  const parts = Object.entries(ttft.mean_parts).filter(([, value]) => value > 0).sort((one, two) => two[1] - one[1])
    .slice(0, MAX_CLIENTS).map(([name, value]) => ({ key: name, name: word("part", name), said: seconds(value), verdict: null }));
  if (ttft.p95 !== null) parts.unshift({ key: "p95", name: t("lead.p95"), said: seconds(ttft.p95), verdict: null });
  cards.ttft.update(ttft.verdict, ttft.p50 === null ? t("lead.no_answers") : seconds(ttft.p50), parts);
  cards.disk.update(disk.verdict, bytes(disk.written_bytes), [
    { key: "evicted", name: t("lead.evicted"), said: bytes(disk.evicted_bytes), verdict: null },
    { key: "covered", name: t("lead.covered"), said: seconds(disk.covered_s), verdict: null },
  ]);
}

function facts(names) {
  const values = Object.fromEntries(names.map((name) => [name, h("dd")]));
  return {
    node: h("dl", { class: "facts" }, names.map((name) => h("div", {}, h("dt", {}, t(`fact.${name}`)), values[name]))),
    update(found, spell) {
      for (const name of names) setText(values[name], spell(found[name]));
    },
  };
}

function showUse(use, status) {
  const total = (tier, key) => status.models.reduce((sum, one) => sum + one[tier][key], 0);
  for (const tier of ["memory", "disk"]) {
    const held = total(tier, "bytes");
    // All engines share one folder, and each says the whole of its budget.
    const most = tier === "disk" ? Math.max(0, ...status.models.map((one) => one.disk.budget_bytes)) : total(tier, "budget_bytes");
    use[tier].update(held, most, t("use.of", { used: bytes(held), total: bytes(most) }));
  }
  const machine = status.machine_memory;
  if (machine) {
    const used = Math.max(0, machine.total_bytes - machine.available_bytes);
    use.machine.update(used, machine.total_bytes, t("use.of", { used: bytes(used), total: bytes(machine.total_bytes) }));
  }
}
