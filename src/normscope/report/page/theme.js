// Light or dark: as the system says, until the reader chooses; the choice is kept where that is possible.
"use strict";
(() => {
  const normscope = (window.normscope = window.normscope || {});
  const root = document.documentElement;
  const remember = (key, value) => {
    try {
      if (value === undefined) return localStorage.getItem(key);
      localStorage.setItem(key, value);
    } catch {
      // storage may be closed to files: then the choice lasts as long as the page
    }
    return null;
  };

  // Make a button choose the theme; `redraw` is called whenever colours change.
  normscope.theme = (toggle, redraw) => {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const show = () => {
      toggle.setAttribute("aria-pressed", String(isDark()));
      redraw();
    };
    const stored = remember("normscope-theme");
    if (stored === "dark" || stored === "light") root.dataset.theme = stored;
    toggle.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember("normscope-theme", root.dataset.theme);
      show();
    });
    system.addEventListener("change", show);
    show();
  };
})();
