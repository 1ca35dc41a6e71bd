// The end of the server's log, followed.

import { api, poll } from "./api.js";
import { h, setText } from "./dom.js";
import { field, options } from "./parts.js";
import { number, t } from "./words.js";

const LIVE_MS = 2000;

export function mount(main, { complain }) {
  const lines = field(t("logs.lines"), h("select", { onchange: () => polling.now() }));
  options(lines.input, [100, 200, 500, 1000].map((num) => [String(num), number(num)]));
  lines.input.value = "200";
  const filter = field(t("logs.filter"), h("input", { type: "search", autocomplete: "off", oninput: () => show() }));
  const follow = h("input", { type: "checkbox", checked: true });
  const followed = field(t("logs.follow"), follow);
  followed.node.classList.add("check");
  const where = h("p", { class: "hint" });
  const text = h("pre", { class: "code log", tabindex: "0", role: "region", "aria-label": t("logs.text") });
  main.append(h("div", { class: "line" }, lines.node, filter.node, followed.node), where, text);
  let found = [];

  const show = () => {
    const wanted = filter.input.value.toLowerCase();
    const shown = found.filter((line) => line.toLowerCase().includes(wanted));
    setText(text, shown.length ? shown.join("\n") : t("logs.none"));
    if (follow.checked) text.scrollTop = text.scrollHeight;
  };
  const polling = poll(async () => {
    if (!follow.checked && found.length) return;
    const answer = await api("GET", `/logs?lines=${lines.input.value}`);
    found = answer.lines;
    setText(where, answer.path ?? t("logs.no_file"));
    show();
  }, LIVE_MS, complain);
  return () => polling.stop();
}
