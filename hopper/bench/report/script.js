// Tooltips, the choice of iteration, colours, zoom and theme. Without it everything is on the page.
"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");

  function show(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x + 14), root.clientWidth - box.width - 8);
    const above = y - box.height - 12;
    tip.style.transform = `translate(${left}px, ${above > 4 ? above : y + 18}px)`;
  }
  const hide = () => { tip.hidden = true; };

  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest("[data-tip]");
    const canvas = event.target.closest(".canvas");
    if (mark) show(mark.dataset.tip, event.clientX, event.clientY);
    else if (canvas) read(canvas, event);
    else hide();
  });
  document.addEventListener("pointerdown", (event) => {
    const mark = event.target.closest("[data-tip]");
    if (mark) show(mark.dataset.tip, event.clientX, event.clientY);
  });
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // The values of all curves at the pointer.
  const parsed = new WeakMap();
  function read(canvas, event) {
    if (!parsed.has(canvas)) parsed.set(canvas, JSON.parse(canvas.dataset.curves));
    const box = canvas.getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width;
    const lines = [];
    let at = null;
    for (const curve of parsed.get(canvas)) {
      if (curve.points.length === 0) continue;
      const near = curve.points.reduce((a, b) =>
        Math.abs(b[0] - place) < Math.abs(a[0] - place) ? b : a);
      at = at === null ? near : at;
      lines.push(`${curve.name}: ${near[2]}`);
    }
    if (at === null) return;
    const cross = canvas.querySelector(".cross");
    cross.setAttribute("x1", `${100 * at[0]}%`);
    cross.setAttribute("x2", `${100 * at[0]}%`);
    cross.style.visibility = "visible";
    show(`${canvas.dataset.x} ${at[1]}\n${lines.join("\n")}`, event.clientX, event.clientY);
  }
  for (const canvas of document.querySelectorAll(".canvas")) {
    canvas.addEventListener("pointerleave", () => {
      canvas.querySelector(".cross").style.visibility = "";
      hide();
    });
  }

  // One of several buttons is pressed.
  function choice(selector, act) {
    const buttons = [...document.querySelectorAll(selector)];
    for (const button of buttons) {
      button.addEventListener("click", () => {
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        act(button);
      });
    }
  }

  const charts = document.getElementById("schedule-charts");
  if (charts) {
    const panels = [...charts.querySelectorAll(".iteration")];
    const section = charts.closest("section");
    const pick = (index) => {
      for (const panel of panels) panel.hidden = panel.dataset.iteration !== index;
    };
    const colour = (kind) => {
      charts.classList.toggle("by-model", kind === "model");
      charts.classList.toggle("by-stage", kind === "stage");
      section.classList.toggle("key-for-model", kind === "model");
      section.classList.toggle("key-for-stage", kind === "stage");
    };
    charts.querySelector(".controls").hidden = false;
    pick("0");
    colour(charts.classList.contains("by-model") ? "model" : "stage");
    choice("[data-choose]", (button) => pick(button.dataset.choose));
    choice("[data-colour]", (button) => colour(button.dataset.colour));
    const common = charts.querySelector("[data-common]");
    common.addEventListener("click", () => {
      const pressed = charts.classList.toggle("common-axis");
      common.setAttribute("aria-pressed", String(pressed));
    });
    let zoom = 1;
    for (const button of charts.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => {
        zoom = Math.min(16, Math.max(1, zoom * Number(button.dataset.zoom)));
        charts.style.setProperty("--zoom", zoom);
      });
    }
  }

  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // A print shows the numbers under every chart, and closes them again afterwards.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.numbers:not([open])")];
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
})();
