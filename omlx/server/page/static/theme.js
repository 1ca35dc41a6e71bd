// Sets the theme that was chosen before anything is drawn; without a choice the system's holds.
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("omlx-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is off: the system's theme.
  }
})();
