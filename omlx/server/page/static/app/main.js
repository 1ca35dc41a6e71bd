// The frame of the page: signing in, the way between sections, language and theme.

import { ApiError, session, signIn, signOut, whenSignedOut } from "./api.js";
import { h, setText } from "./dom.js";
import { button, field, options } from "./parts.js";
import { LANGUAGES, choose, chosen, language, speak, t } from "./words.js";
import * as cache from "./cache.js";
import * as clients from "./clients.js";
import * as keys from "./keys.js";
import * as logs from "./logs.js";
import * as models from "./models.js";
import * as requests from "./requests.js";
import * as settings from "./settings.js";
import * as status from "./status.js";

const SECTIONS = [
  ["status", status],
  ["requests", requests],
  ["models", models],
  ["cache", cache],
  ["settings", settings],
  ["keys", keys],
  ["clients", clients],
  ["logs", logs],
];
const THEME = "omlx-theme";
const NARROW = "(max-width: 760px)";

let known = { is_open: false, is_signed_in: false, can_sign_in: true, version: "" };
let leave = () => {};

// Said to those who see and to screen readers, once: what an action came to.
const notices = h("p", { class: "notice", role: "status", "aria-live": "polite" });
const alarm = h("p", { class: "alarm", role: "alert", hidden: true });

export function say(text) {
  setText(notices, "");
  setTimeout(() => setText(notices, text), 30);
}

// The connection is gone or back; null is back.
export function complain(error) {
  const text = error === null ? "" : error instanceof ApiError ? error.message : t("note.offline");
  if (alarm.textContent !== text) setText(alarm, text);
  alarm.hidden = text === "";
}

function languageField() {
  const select = h("select", {
    onchange: async () => {
      await choose(select.value);
      draw();
      document.getElementById("language")?.querySelector("select")?.focus();
    },
  });
  options(select, LANGUAGES, language());
  select.value = language();
  for (const one of select.options) one.lang = one.value;
  const made = field(t("shell.language"), select);
  made.node.id = "language";
  return made.node;
}

function themeField() {
  const select = h("select", {
    onchange: () => {
      const wanted = select.value;
      if (wanted === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = wanted;
      try {
        if (wanted === "auto") localStorage.removeItem(THEME);
        else localStorage.setItem(THEME, wanted);
      } catch {
        // It holds until the page is left.
      }
    },
  });
  options(select, ["auto", "light", "dark"].map((one) => [one, t(`theme.${one}`)]));
  select.value = document.documentElement.dataset.theme ?? "auto";
  return field(t("shell.theme"), select).node;
}

function skipLink() {
  return h("a", {
    class: "skip",
    href: "#main",
    onclick: (event) => {
      event.preventDefault();
      document.getElementById("main")?.focus();
    },
  }, t("shell.skip"));
}

function brand() {
  return h("p", { class: "brand" }, h("span", { class: "name" }, "omlx"), " ", h("span", { class: "version" }, known.version));
}

function drawSignIn(note = "") {
  const input = h("input", { type: "password", autocomplete: "current-password", spellcheck: "false", required: true });
  const key = field(t("signin.key"), input, t("signin.hint"));
  const form = h("form", {
    novalidate: true,
    onsubmit: async (event) => {
      event.preventDefault();
      if (!input.value.trim()) return key.fail(t("signin.empty"));
      try {
        await signIn(input.value);
      } catch (error) {
        return key.fail(signInFault(error));
      }
      input.value = "";
      await begin();
      document.getElementById("main")?.focus();
    },
  }, key.node, h("button", { type: "submit", class: "primary" }, t("signin.act")));
  const off = known.can_sign_in ? null : h("p", { class: "warning" }, t("signin.off"));
  document.title = `${t("signin.title")} · omlx`;
  setText(notices, note);
  document.body.replaceChildren(
    skipLink(),
    h("header", { class: "top" }, brand(), h("div", { class: "choices" }, languageField(), themeField())),
    h("main", { id: "main", tabindex: "-1", class: "signin" }, h("h1", {}, t("signin.title")), off, form, notices));
  input.focus();
}

function signInFault(error) {
  if (!(error instanceof ApiError)) return t("note.offline");
  if (error.code === "wrong_key") return t("signin.wrong");
  if (error.status === 429) return t("signin.wait");
  return error.status === 403 ? t("signin.scope") : error.message;
}

function current() {
  const name = location.hash.replace(/^#\/?/, "");
  return SECTIONS.find(([id]) => id === name) ?? SECTIONS[0];
}

function drawShell() {
  const main = h("main", { id: "main", tabindex: "-1" });
  const list = h("ul", { id: "sections" }, SECTIONS.map(([id]) =>
    h("li", {}, h("a", { href: `#/${id}`, "data-section": id }, t(`section.${id}`)))));
  const toggle = h("button", {
    type: "button", class: "menu", "aria-expanded": "false", "aria-controls": "sections",
    onclick: () => open(toggle.getAttribute("aria-expanded") !== "true"),
  }, t("shell.menu"));
  const open = (isOpen) => {
    toggle.setAttribute("aria-expanded", String(isOpen));
    list.classList.toggle("open", isOpen);
  };
  const nav = h("nav", {
    "aria-label": t("shell.sections"),
    onkeydown: (event) => {
      if (event.key === "Escape" && toggle.getAttribute("aria-expanded") === "true") {
        open(false);
        toggle.focus();
      }
    },
  }, toggle, list);
  const out = known.is_open ? null : button(t("shell.sign_out"), async () => {
    leave();
    try {
      await signOut();
    } catch {
      // The half that was kept here is gone in any case.
    }
    await begin(t("note.signed_out"));
  });
  document.body.replaceChildren(
    skipLink(),
    h("header", { class: "top" }, brand(), h("div", { class: "choices" }, languageField(), themeField(), out)),
    h("div", { class: "frame" }, nav, h("div", { class: "page" }, alarm, notices, main)));
  return { main, list, open };
}

let shell = null;

function drawSection(isMove) {
  leave();
  leave = () => {};
  const [id, section] = current();
  for (const link of shell.list.querySelectorAll("a")) {
    if (link.dataset.section === id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${t(`section.${id}`)} · omlx`;
  complain(null);
  const title = h("h1", { tabindex: "-1" }, t(`section.${id}`));
  shell.main.replaceChildren(title);
  if (isMove) {
    setText(notices, "");
    if (matchMedia(NARROW).matches) shell.open(false);
    title.focus();
    scrollTo(0, 0);
  }
  leave = section.mount(shell.main, { say, complain });
}

function draw() {
  leave();
  leave = () => {};
  if (!known.is_open && !known.is_signed_in) {
    shell = null;
    drawSignIn();
    return;
  }
  shell = drawShell();
  drawSection(false);
}

async function begin(note = "") {
  try {
    known = await session();
  } catch {
    known = { ...known, is_signed_in: false };
    note = t("note.offline");
  }
  draw();
  if (note) say(note);
}

whenSignedOut(() => {
  if (shell === null) return;
  leave();
  leave = () => {};
  shell = null;
  begin(t("note.session_over"));
});
addEventListener("hashchange", () => {
  if (shell !== null) drawSection(true);
});

try {
  await speak(chosen());
} catch {
  await speak("en");
}
await begin();
