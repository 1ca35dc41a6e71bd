// Curves over turns, as SVG of attributes and classes; the same numbers are in a table below.

import { h, setAttribute, svg } from "./dom.js";
import { clock, t } from "./words.js";

const HEIGHT = 170;
const RIGHT = 10;
const TOP = 10;
const BOTTOM = 24;
const WINDOW = 10;
const ROWS = 12;

// A figure of points {time, value, weight}; `spell` makes words of a value, `top` is the least
// upper end of the axis. The line is the mean of the last ten turns, by weight.
export function chart(title, note, spell, top) {
  const area = h("div", { class: "chart" });
  const empty = h("p", { class: "empty" }, t("chart.empty"));
  const rows = h("tbody");
  const more = h("details", {}, h("summary", {}, t("chart.as_table")),
    h("table", {}, h("caption", { class: "unseen" }, title),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("col.time")), h("th", { scope: "col", class: "num" }, title))),
      rows));
  const node = h("figure", {}, h("figcaption", {}, h("h3", {}, title), h("p", { class: "hint" }, note)), area, empty, more);
  let points = [];
  let width = 0;
  let drawn = "";

  function draw() {
    const key = JSON.stringify([width, points]);
    if (key === drawn || (width === 0 && points.length)) return;
    drawn = key;
    empty.hidden = points.length > 0;
    area.hidden = more.hidden = points.length === 0;
    area.replaceChildren();
    if (points.length) area.append(picture(title, points, width, spell, top));
    rows.replaceChildren(...points.slice(-ROWS).reverse().map((one) =>
      h("tr", {}, h("td", {}, clock(one.time)), h("td", { class: "num" }, spell(one.value)))));
  }

  const watcher = new ResizeObserver(([entry]) => {
    width = Math.floor(entry.contentRect.width);
    draw();
  });
  watcher.observe(node);
  return {
    node,
    update(found) {
      points = found;
      draw();
    },
    stop: () => watcher.disconnect(),
  };
}

function picture(title, points, width, spell, top) {
  const highest = niceTop(Math.max(top, ...points.map((one) => one.value)));
  const marks = [0, 0.5, 1].map((part) => highest * part);
  const left = 14 + Math.max(...marks.map((value) => wide(spell(value))));
  const inner = Math.max(1, width - left - RIGHT);
  const depth = HEIGHT - TOP - BOTTOM;
  const x = (at) => left + (points.length === 1 ? inner / 2 : (at / (points.length - 1)) * inner);
  const y = (value) => TOP + depth * (1 - value / highest);
  const means = smoothed(points);
  const lines = marks.map((value) => {
    const at = y(value);
    return [
      svg("line", { class: "grid", x1: left, x2: width - RIGHT, y1: at, y2: at }),
      svg("text", { class: "axis", x: left - 6, y: at + 4, "text-anchor": "end" }, spell(value)),
    ];
  });
  const ends = [
    svg("text", { class: "axis", x: left, y: HEIGHT - 6 }, clock(points[0].time)),
    points.length > 1 && width > 240
      ? svg("text", { class: "axis", x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, clock(points.at(-1).time))
      : null,
  ];
  const path = means.map((value, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const dots = points.map((one, at) => svg("circle", { class: "dot", cx: x(at).toFixed(1), cy: y(one.value).toFixed(1), r: 2.5 },
    svg("title", {}, `${clock(one.time)}: ${spell(one.value)}`)));
  const said = t("chart.said", { title, last: spell(points.at(-1).value), mean: spell(means.at(-1)), turns: points.length });
  const node = svg("svg", { role: "img", "aria-label": said, viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT },
    lines, ends, dots, svg("path", { class: "curve", d: path }));
  setAttribute(node, "focusable", "false");
  return node;
}

// About how many pixels a label takes; characters of Chinese, Japanese and Korean are wider.
function wide(text) {
  return [...text].reduce((sum, one) => sum + (one.codePointAt(0) > 0x2e80 ? 11.5 : 6.6), 0);
}

function smoothed(points) {
  return points.map((_, at) => {
    const last = points.slice(Math.max(0, at - WINDOW + 1), at + 1);
    const weight = last.reduce((sum, one) => sum + one.weight, 0);
    return weight ? last.reduce((sum, one) => sum + one.value * one.weight, 0) / weight : 0;
  });
}

function niceTop(value) {
  if (!(value > 0)) return 1;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((one) => one * step).find((one) => one >= value * 0.999) ?? value;
}
