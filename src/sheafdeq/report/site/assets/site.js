// Theme, sorting and filtering. Every page is complete without this file; it only rearranges and hides.
"use strict";

(() => {
  // ------------------------------------------------------------------ theme
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const remembered = (() => { try { return localStorage.getItem("sheafdeq-theme"); } catch { return null; } })();
  if (remembered === "dark" || remembered === "light") root.dataset.theme = remembered;
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `use the ${dark() ? "light" : "dark"} theme`); };
  if (button) {
    button.hidden = false;
    label();
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("sheafdeq-theme", root.dataset.theme); } catch { /* private mode: not remembered */ }
      label();
      document.dispatchEvent(new Event("sheafdeq-theme"));
    });
  }

  // ------------------------------------------------------------------ the rest of a long list of runs
  // Laying out thousands of rows takes seconds; the first ones are there at once, the others follow when the browser is idle.
  const later = document.getElementById("later-runs");
  const waiting = later ? [...later.content.querySelectorAll("tr")] : [];
  const idle = window.requestIdleCallback || (work => setTimeout(work, 50));
  const more = count => { if (waiting.length) document.querySelector("#run-table tbody").append(...waiting.splice(0, count)); };
  const all = () => more(waiting.length);
  const trickle = () => { more(100); if (waiting.length) idle(trickle); };
  if (waiting.length) addEventListener("load", () => setTimeout(() => idle(trickle), 300));
  addEventListener("beforeprint", all);

  // ------------------------------------------------------------------ sorting
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  function keyOf(row, column, numeric) {
    const cell = row.cells[column];
    if (!cell) return numeric ? NaN : "";
    if (numeric) return cell.dataset.v === undefined || cell.dataset.v === "" ? NaN : Number(cell.dataset.v);
    return cell.textContent.trim();
  }

  // A grouped table has one tbody for each model; its first line (ours) decides, the paper's line goes along.
  function sort(table, column, numeric, descending) {
    const grouped = table.classList.contains("grouped");
    const holder = grouped ? table : table.tBodies[0];
    const items = grouped ? [...table.tBodies] : [...holder.rows];
    const keyed = items.map((item, place) => ({ item, place, key: keyOf(grouped ? item.rows[0] : item, column, numeric) }));
    keyed.sort((a, b) => {
      let order;
      if (numeric) {
        if (Number.isNaN(a.key) || Number.isNaN(b.key)) return Number.isNaN(a.key) - Number.isNaN(b.key) || a.place - b.place;
        order = a.key - b.key;
      } else {
        order = collator.compare(a.key, b.key);
      }
      return (descending ? -order : order) || a.place - b.place;
    });
    holder.append(...keyed.map(entry => entry.item));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      if ("fixed" in head.dataset) continue;
      const trigger = document.createElement("button");
      trigger.type = "button";
      trigger.append(...head.childNodes);
      head.append(trigger);
      trigger.addEventListener("click", () => {
        all();
        const numeric = "numeric" in head.dataset;
        const before = head.getAttribute("aria-sort");
        // the best first: numbers begin with the highest, words with A
        const descending = before === null ? numeric : before === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, head.cellIndex, numeric, descending);
      });
    }
  }

  // ------------------------------------------------------------------ filtering
  const form = document.getElementById("filters");
  if (!form) return;
  form.hidden = false;
  const field = name => document.getElementById(`filter-${name}`);
  const runs = [...document.querySelectorAll("#run-table tbody tr"), ...waiting];
  let words = null; // made when something is typed: two thousand rows take a moment to read
  const groups = [...document.querySelectorAll("table.grouped tbody")];

  function apply() {
    const model = field("model").value, level = field("level").value, protocol = field("protocol").value;
    const text = field("text").value.trim().toLowerCase();
    if (text && !words) words = runs.map(row => row.textContent.toLowerCase());
    let shown = 0;
    runs.forEach((row, place) => {
      const keep = (!model || row.dataset.model === model) && (!level || row.dataset.level === level)
        && (!protocol || row.dataset.protocol === protocol) && (!text || words[place].includes(text));
      if (row.hidden === keep) row.hidden = !keep;
      shown += keep;
    });
    for (const group of groups) {
      const title = group.dataset.model.toLowerCase(), bare = field("ours").checked && group.classList.contains("empty");
      group.hidden = Boolean(bare || (model && !title.startsWith(model.toLowerCase())) || (text && !group.textContent.toLowerCase().includes(text)));
    }
    for (const cell of document.querySelectorAll("table.grouped [data-level]")) {
      cell.hidden = Boolean(level && cell.dataset.level && cell.dataset.level !== level);
    }
    for (const cell of document.querySelectorAll("table.grouped tr.ours td[data-v]")) {
      const other = "other" in cell.dataset;
      const off = Boolean((protocol === "paper" && other) || (protocol === "other" && !other));
      cell.classList.toggle("off", off);
      for (const part of cell.children) part.hidden = off;
    }
    document.getElementById("filter-count").textContent = shown === runs.length ? `${runs.length} runs` : `${shown} of ${runs.length} runs`;
  }

  form.addEventListener("input", apply);
  form.addEventListener("change", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  form.addEventListener("submit", event => event.preventDefault());
  apply();

  // ------------------------------------------------------------------ choosing runs to compare
  const link = document.getElementById("compare-link");
  const boxes = document.getElementById("run-table");
  boxes.addEventListener("change", () => {
    const chosen = [...boxes.querySelectorAll("input:checked")].map(box => box.value);
    link.href = chosen.length ? `compare.html#${chosen.join(",")}` : "compare.html";
    link.textContent = chosen.length ? `compare the ${chosen.length} chosen` : "compare them";
  });
})();
