// The page's words in the language of the user, and numbers and dates as that language has them.

export const LANGUAGES = [
  ["en", "English"],
  ["de", "Deutsch"],
  ["es", "Español"],
  ["fr", "Français"],
  ["ja", "日本語"],
  ["ko", "한국어"],
  ["zh-Hans", "简体中文"],
  ["zh-Hant", "繁體中文"],
];
const CODES = LANGUAGES.map(([code]) => code);
const KEPT = "omlx-language";

let code = "en";
let words = {};
let spoken = {};

// The first language that the browser prefers and the page has.
export function preferred(wanted) {
  for (const tag of wanted) {
    const parts = tag.toLowerCase().split("-");
    if (parts[0] === "zh") {
      const isTraditional = ["hant", "tw", "hk", "mo"].some((one) => parts.includes(one));
      return isTraditional && !parts.includes("hans") ? "zh-Hant" : "zh-Hans";
    }
    if (CODES.includes(parts[0])) return parts[0];
  }
  return "en";
}

export function chosen() {
  try {
    const kept = localStorage.getItem(KEPT);
    if (CODES.includes(kept)) return kept;
  } catch {
    // Storage is off: the browser's preference.
  }
  return preferred(navigator.languages ?? ["en"]);
}

export async function speak(wanted) {
  const response = await fetch(`/admin/page/locales/${wanted}.json`);
  if (!response.ok) throw new Error(`no words in ${wanted}`);
  words = await response.json();
  code = wanted;
  spoken = {};
  document.documentElement.lang = wanted;
}

export async function choose(wanted) {
  await speak(wanted);
  try {
    localStorage.setItem(KEPT, wanted);
  } catch {
    // It holds until the page is left.
  }
}

export function language() {
  return code;
}

// The words of a key, with what stands in braces replaced.
export function t(key, values = {}) {
  const text = words[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

// The words for a word of the server's, or that word itself where the page has none.
export function word(prefix, value) {
  return words[`${prefix}.${String(value).replaceAll(" ", "_")}`] ?? String(value);
}

// Intl objects are slow to make.
function format(options) {
  const key = JSON.stringify(options);
  spoken[key] ??= new Intl.NumberFormat(code, options);
  return spoken[key];
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function number(value, digits = 0) {
  return isNumber(value) ? format({ maximumFractionDigits: digits }).format(value) : "–";
}

export function percent(value) {
  if (!isNumber(value)) return "–";
  return format({ style: "percent", maximumFractionDigits: 1 }).format(value);
}

function unit(value, name, digits) {
  const options = { style: "unit", unit: name, unitDisplay: "short", maximumFractionDigits: digits };
  return format(options).format(value);
}

export function bytes(value) {
  if (!isNumber(value)) return "–";
  const steps = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];
  let step = 0;
  while (Math.abs(value) >= 1000 && step < steps.length - 1) {
    value /= 1000;
    step += 1;
  }
  return unit(value, steps[step], step > 1 && value < 100 ? 1 : 0);
}

export function seconds(value) {
  if (!isNumber(value)) return "–";
  if (value < 1) return unit(value * 1000, "millisecond", value < 0.01 ? 1 : 0);
  if (value < 60) return unit(value, "second", value < 10 ? 1 : 0);
  if (value < 3600) return `${unit(Math.floor(value / 60), "minute", 0)} ${unit(Math.floor(value % 60), "second", 0)}`;
  if (value < 86400) return `${unit(Math.floor(value / 3600), "hour", 0)} ${unit(Math.floor((value % 3600) / 60), "minute", 0)}`;
  return `${unit(Math.floor(value / 86400), "day", 0)} ${unit(Math.floor((value % 86400) / 3600), "hour", 0)}`;
}

export function clock(epochSeconds) {
  if (!isNumber(epochSeconds)) return "–";
  return new Intl.DateTimeFormat(code, { timeStyle: "medium" }).format(epochSeconds * 1000);
}

export function day(text) {
  const time = Date.parse(text);
  if (Number.isNaN(time)) return String(text);
  return new Intl.DateTimeFormat(code, { dateStyle: "medium" }).format(time);
}
