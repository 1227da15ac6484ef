// Compare: chosen runs stand in the address (#run,run); their curves are loaded from data/<run>.js when chosen.
"use strict";

const sheafdeqCompare = { index: [], byPage: new Map(), loaded: new Map(), wanted: [] };

function sheafdeqIndex(entries) {
  sheafdeqCompare.index = entries;
  sheafdeqCompare.byPage = new Map(entries.map(entry => [entry.page, entry]));
  sheafdeqStart();
}

function sheafdeqReceive(run) {
  const entry = sheafdeqCompare.index.find(candidate => candidate.id === run.id);
  if (entry) sheafdeqCompare.loaded.set(entry.page, run);
  sheafdeqShow();
}

const sheafdeqStart = () => {
  const { html } = sheafdeqChart;
  const picker = document.getElementById("picker"), add = document.getElementById("add"), said = document.getElementById("said");
  picker.hidden = false;
  const name = entry => `${entry.page.slice(0, 8)} ${entry.label}${entry.options ? ` (${entry.options})` : ""}`;
  document.getElementById("known").append(...sheafdeqCompare.index.map(entry => html("option", { value: name(entry) })));
  picker.addEventListener("submit", event => {
    event.preventDefault();
    const words = add.value.trim().toLowerCase();
    const found = words ? sheafdeqCompare.index.filter(entry => name(entry).toLowerCase().includes(words)) : [];
    if (found.length !== 1) {
      said.textContent = found.length ? `${found.length} runs fit; say more` : "no run fits";
      return;
    }
    said.textContent = "";
    add.value = "";
    choose([...new Set([...sheafdeqCompare.wanted, found[0].page])]);
  });
  picker.addEventListener("reset", () => choose([]));
  addEventListener("hashchange", read);
  read();
};

function choose(pages) {
  location.hash = pages.join(",");
}

function read() {
  sheafdeqCompare.wanted = [...new Set(location.hash.slice(1).split(","))].filter(page => sheafdeqCompare.byPage.has(page));
  for (const page of sheafdeqCompare.wanted) {
    if (sheafdeqCompare.loaded.has(page)) continue;
    sheafdeqCompare.loaded.set(page, null); // asked for
    const script = document.createElement("script");
    script.src = `data/${page}.js`;
    document.head.append(script);
  }
  sheafdeqShow();
}

const sheafdeqShow = () => {
  const { html, lines, cloud, short } = sheafdeqChart;
  const chosen = sheafdeqCompare.wanted.map(page => sheafdeqCompare.byPage.get(page));
  const empty = "Choose runs above, or tick them on the overview.";
  const table = document.getElementById("side-table");
  const value = number => number === null || number === undefined ? "–" : short(number);
  const lineOf = (title, text) => html("tr", {}, html("th", { scope: "row", textContent: title }), ...chosen.map(entry => html("td", { textContent: text(entry) })));
  if (!chosen.length) {
    table.replaceChildren(html("tbody", {}, html("tr", {}, html("td", { textContent: empty }))));
  } else {
    const head = html("tr", {}, html("td", {}), ...chosen.map(entry => {
      const drop = html("button", { type: "button", className: "quiet", textContent: "remove" });
      drop.setAttribute("aria-label", `remove ${entry.page.slice(0, 8)}`);
      drop.addEventListener("click", () => choose(sheafdeqCompare.wanted.filter(page => page !== entry.page)));
      return html("th", { scope: "col" }, html("a", { href: `runs/${entry.page}.html`, textContent: entry.page.slice(0, 8) }), " ", drop);
    }));
    table.replaceChildren(html("thead", {}, head), html("tbody", {},
      lineOf("model", entry => entry.model), lineOf("options", entry => entry.options || "defaults"), lineOf("task", entry => entry.task), lineOf("seed", entry => entry.seed),
      lineOf("test", entry => `${value(entry.scores.test)} (${entry.score})`), lineOf("validation", entry => value(entry.scores.validation)), lineOf("train", entry => value(entry.scores.train)),
      lineOf("at rest?", entry => entry.settled), lineOf("residual, final evaluation", entry => value(entry.residual)),
      lineOf("residual, continued", entry => entry.trust ? `${value(entry.trust.residual)} after ${entry.trust.iterations}` : "–"),
      lineOf("proved?", entry => entry.verdict || "no certificate"), lineOf("protocol", entry => entry.protocol), lineOf("parameters", entry => entry.parameters.toLocaleString("en")),
      lineOf("epochs (kept)", entry => `${entry.epochs} (${entry.best})`), lineOf("minutes", entry => entry.seconds === null ? "–" : (entry.seconds / 60).toFixed(1))));
  }

  const place = document.getElementById("charts");
  place.replaceChildren();
  const dashes = ["", "6 3", "2 3", "8 3 2 3", "1 2", "10 4"];
  const names = ["validation", "loss", "update", "state_discrepancy", "score", "staleness"];
  for (const kind of names) {
    const series = [];
    let spec = null;
    chosen.forEach((entry, order) => {
      const run = sheafdeqCompare.loaded.get(entry.page);
      const chart = run && run.charts[kind];
      if (!chart) return;
      spec = spec || chart;
      const same = chosen.filter((other, before) => before < order && other.colour === entry.colour).length;
      // one curve a run: the first of its chart (validation, the default start, the first condition)
      const first = kind === "staleness" ? chart.series[chart.series.length - 1] : chart.series[0];
      const suffix = kind === "staleness" ? ` ${first.name}` : "";
      series.push({ ...first, name: `${entry.page.slice(0, 8)} ${entry.model}, seed ${entry.seed}${suffix}`, colour: entry.colour, dash: dashes[same % dashes.length] });
    });
    if (spec) lines(place, { ...spec, marks: chosen.length > 1 ? [] : spec.marks, series });
  }
  if (!chosen.length) place.append(html("p", { className: "note", textContent: empty }));

  const trust = document.getElementById("trust-charts");
  trust.replaceChildren();
  const tasks = new Map();
  for (const entry of sheafdeqCompare.index) if (entry.trust && entry.trust.residual > 0) tasks.set(entry.task, [...(tasks.get(entry.task) || []), entry]);
  for (const [task, entries] of tasks) {
    cloud(trust, {
      title: task, x: "largest relative change of a node", y: entries[0].score, marks: [],
      points: entries.map(entry => ({ x: entry.trust.residual, y: entry.trust.score, label: `${entry.page.slice(0, 8)} ${entry.model}, seed ${entry.seed}`, verdict: entry.verdict,
        colour: entry.colour, href: `runs/${entry.page}.html`, strong: sheafdeqCompare.wanted.includes(entry.page) })),
    });
  }
  if (!tasks.size) trust.append(html("p", { className: "note", textContent: "No run has a diagnose record yet: sheafdeq diagnose RUN --out results/diagnostics" }));
};
