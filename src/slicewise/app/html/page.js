// Sorting, filtering, tooltips, theme. The page is whole without it.
"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  const toggle = document.getElementById("theme");
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const named = () => { toggle.textContent = dark() ? "Light" : "Dark"; };
  toggle.hidden = false;
  toggle.setAttribute("aria-label", "Switch between light and dark");
  toggle.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    named();
  });
  if (location.hash === "#dark" || location.hash === "#light") {
    root.dataset.theme = location.hash.slice(1);
  }
  named();

  const key = (row, column, numeric) => {
    const words = row.cells[column].textContent;
    if (!numeric) return words.toLowerCase();
    const value = parseFloat(words);
    return Number.isNaN(value) ? -Infinity : value;
  };
  const sort = (head) => {
    const table = head.closest("table");
    const body = table.tBodies[0];
    const numeric = head.classList.contains("n");
    const was = head.getAttribute("aria-sort");
    const down = was ? was === "ascending" : numeric;
    all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => [key(row, head.cellIndex, numeric), row]);
    rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
    body.append(...rows.map(([, row]) => row));
  };
  for (const head of all("table.sortable thead th")) {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort(head);
    });
  }

  for (const line of all(".filter")) {
    const rows = [...line.parentElement.querySelector("tbody").rows];
    const words = rows.map((row) => row.textContent.toLowerCase());
    const count = line.querySelector("output");
    line.hidden = false;
    line.querySelector("input").addEventListener("input", (event) => {
      const wanted = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, i) => {
        row.hidden = !wanted.every((word) => words[i].includes(word));
        if (!row.hidden) shown += 1;
      });
      const all = `${rows.length} row${rows.length === 1 ? "" : "s"}`;
      count.textContent = shown === rows.length ? all : `${shown} of ${all}`;
    });
  }

  // The browser's own tooltip is slow and small; ours says the same words.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const titled = (target) => {
    const mark = target.closest && target.closest(".mark, .bar");
    return mark && mark.querySelector("title");
  };
  document.addEventListener("pointerover", (event) => {
    const title = titled(event.target);
    tip.hidden = !title;
    if (!title) return;
    if (title.textContent) {
      title.parentElement.setAttribute("aria-label", title.textContent);
      title.textContent = "";
    }
    tip.textContent = title.parentElement.getAttribute("aria-label");
  });
  document.addEventListener("pointermove", (event) => {
    if (tip.hidden) return;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${event.clientY + 18}px`;
  });

  addEventListener("beforeprint", () => all("details").forEach((part) => {
    if (!part.classList.contains("long")) part.open = true;
  }));
})();
