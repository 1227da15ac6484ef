// The explorer. Reads its data from the page, draws two canvases, and answers clicks. Text goes through textContent only.
"use strict";

(async () => {
  const $ = id => document.getElementById(id);
  const { html } = sheafdeqChart;
  const complain = text => { $("problem").textContent = text; $("problem").hidden = false; };

  // ------------------------------------------------------------------ theme
  const root = document.documentElement;
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const nameTheme = () => { $("theme").textContent = dark() ? "Light" : "Dark"; };
  nameTheme();

  // ------------------------------------------------------------------ data
  if (!("DecompressionStream" in window)) {
    complain("This browser cannot unpack the films (DecompressionStream is missing): a version from 2023 or later can.");
    return;
  }
  const data = JSON.parse($("data").textContent);

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), character => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Differences to the frame before, added up again (modulo 256, as a byte does by itself).
  async function unpackOverTime(text, frame) {
    const bytes = await unpack(text);
    for (let i = frame; i < bytes.length; i++) bytes[i] += bytes[i - frame];
    return bytes;
  }

  const n = data.nodes, e = data.edges;
  const Index = data.wide ? Uint32Array : Uint16Array;
  const source = new Index((await unpack(data.source)).buffer), target = new Index((await unpack(data.target)).buffer);
  const layouts = [];
  for (const layout of data.layouts) layouts.push({ name: layout.name, points: new Uint16Array((await unpack(layout.points)).buffer) });
  const truth = data.truth === null ? null : await unpack(data.truth);
  const incoming = Array.from({ length: n }, () => []); // edges into each node
  for (let k = 0; k < e; k++) incoming[target[k]].push(k);

  const films = data.films;
  async function load(film) {
    if (film.ready) return film;
    film.prediction = await unpackOverTime(film.prediction, n);
    film.residual = await unpackOverTime(film.residual, n);
    film.disagreement = await unpackOverTime(film.disagreement, n);
    if (film.delays !== null) film.delays = await unpack(film.delays);
    const [levels, stalk, channels] = film.shape;
    film.width = levels * stalk * channels;
    if (film.states) film.states.values = await unpackOverTime(film.states.data, n * film.width);
    if (film.maps) { film.maps.entry = film.maps.names.length * film.maps.dim ** 2; film.maps.values = await unpackOverTime(film.maps.data, e * film.maps.entry); }
    film.ready = true;
    return film;
  }

  // ------------------------------------------------------------------ colours
  const CLASSES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#882255", "#999999", "#44AA99", "#AA4499", "#DDCC77"];
  const ANCHORS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const mix = (a, b, t) => a.map((value, i) => Math.round(value + (b[i] - value) * t));
  const RAMP = Array.from({ length: 64 }, (_, level) => {
    const place = level / 63 * (ANCHORS.length - 1), k = Math.min(Math.floor(place), ANCHORS.length - 2);
    return `rgb(${mix(ANCHORS[k], ANCHORS[k + 1], place - k).join(",")})`;
  });
  const AGES = ["#F0C808", "#F28F16", "#E4572E", "#B5179E"];
  const ageColour = age => AGES[Math.min(age, AGES.length) - 1];
  const classColour = number => CLASSES[number % CLASSES.length];
  const className = number => data.classNames[number] || `class ${number}`;

  // ------------------------------------------------------------------ state of the page
  const view = { left: 0, right: -1, time: 0, playing: false, node: -1, layout: 0, zoom: 1, x: 0.5, y: 0.5 };
  const panels = ["left", "right"].map(side => ({ side, canvas: $(`${side}-canvas`), pen: $(`${side}-canvas`).getContext("2d"), backdrop: document.createElement("canvas"), stale: true }));
  const shown = () => panels.filter(panel => view[panel.side] >= 0);
  const filmOf = panel => films[view[panel.side]];
  const longest = () => Math.max(...shown().map(panel => filmOf(panel).frames)) - 1;
  const at = film => Math.min(view.time, film.frames - 1);

  function levelsOf(film) {
    const start = at(film) * n;
    switch ($("colour").value) {
      case "class": return truth;
      case "prediction": return film.prediction.subarray(start, start + n);
      case "residual": return film.residual.subarray(start, start + n);
      default: return film.disagreement.subarray(start, start + n);
    }
  }
  const palette = () => ["class", "prediction"].includes($("colour").value) && data.classes !== null ? CLASSES : RAMP;

  // ------------------------------------------------------------------ geometry
  function fit(panel) {
    const box = panel.canvas.getBoundingClientRect(), ratio = Math.min(window.devicePixelRatio || 1, 2);
    const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
    if (panel.canvas.width !== width || panel.canvas.height !== height) {
      panel.canvas.width = panel.backdrop.width = width;
      panel.canvas.height = panel.backdrop.height = height;
      panel.stale = true;
    }
    panel.ratio = ratio;
    const side = Math.min(width, height) * 0.94;
    panel.scale = side * view.zoom;
    panel.left = width / 2 - view.x * panel.scale;
    panel.top = height / 2 - view.y * panel.scale;
    const points = layouts[view.layout].points;
    if (panel.stale || !panel.xs) {
      panel.xs = new Float32Array(n);
      panel.ys = new Float32Array(n);
      for (let v = 0; v < n; v++) {
        panel.xs[v] = panel.left + panel.scale * points[2 * v] / 65535;
        panel.ys[v] = panel.top + panel.scale * points[2 * v + 1] / 65535;
      }
    }
    panel.radius = Math.max(1.6 * ratio, Math.min(9 * ratio, 0.36 * side / Math.sqrt(Math.max(n, 1)) * Math.sqrt(view.zoom)));
  }

  // Edges do not move: they are drawn once and kept as a picture.
  function drawBackdrop(panel) {
    const pen = panel.backdrop.getContext("2d");
    pen.clearRect(0, 0, panel.backdrop.width, panel.backdrop.height);
    if ($("edges").checked) {
      pen.strokeStyle = dark() ? "rgba(200,210,230,1)" : "rgba(60,70,90,1)";
      pen.globalAlpha = Math.max(0.03, Math.min(0.5, 900 / Math.max(e, 1)));
      pen.lineWidth = panel.ratio * 0.7;
      pen.beginPath();
      for (let k = 0; k < e; k++) {
        if (source[k] > target[k] && e > 4000) continue; // the two directions of an edge are one line
        pen.moveTo(panel.xs[source[k]], panel.ys[source[k]]);
        pen.lineTo(panel.xs[target[k]], panel.ys[target[k]]);
      }
      pen.stroke();
      pen.globalAlpha = 1;
    }
    panel.stale = false;
  }

  // ------------------------------------------------------------------ drawing
  let lateAllowed = 4000; // lowered while drawing takes too long
  let drawn = { late: 0, of: 0 };

  function drawLate(panel, film) {
    if (film.delays === null || film.delays === undefined || !$("late").checked || view.time < 1 || view.time > film.frames - 1) return;
    const start = (view.time - 1) * e, pen = panel.pen;
    const groups = AGES.map(() => []);
    for (let k = 0; k < e; k++) {
      const age = film.delays[start + k] - 1;
      if (age >= 1) groups[Math.min(age, AGES.length) - 1].push(k);
    }
    const total = groups.reduce((sum, group) => sum + group.length, 0);
    let left = view.node >= 0 ? Infinity : lateAllowed;
    drawn = { late: Math.min(total, left), of: total };
    pen.lineWidth = panel.ratio;
    pen.globalAlpha = Math.max(0.07, Math.min(0.8, 400 / Math.max(total, 1)));
    for (let age = AGES.length - 1; age >= 0 && left > 0; age--) { // the oldest first: they matter most
      pen.strokeStyle = AGES[age];
      pen.beginPath();
      for (const k of groups[age]) {
        if (left-- <= 0) break;
        pen.moveTo(panel.xs[source[k]], panel.ys[source[k]]);
        pen.lineTo(panel.xs[target[k]], panel.ys[target[k]]);
      }
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  function draw(panel) {
    const film = filmOf(panel);
    if (!film || !film.ready) return;
    fit(panel);
    if (panel.stale) drawBackdrop(panel);
    const pen = panel.pen, levels = levelsOf(film), colours = palette(), radius = panel.radius;
    pen.clearRect(0, 0, panel.canvas.width, panel.canvas.height);
    pen.drawImage(panel.backdrop, 0, 0);
    drawLate(panel, film);
    const buckets = new Map();
    for (let v = 0; v < n; v++) {
      const level = levels === null ? 0 : levels[v];
      let bucket = buckets.get(level);
      if (!bucket) buckets.set(level, bucket = []);
      bucket.push(v);
    }
    for (const [level, members] of buckets) {
      pen.fillStyle = colours[level % colours.length];
      pen.beginPath();
      for (const v of members) {
        const x = panel.xs[v], y = panel.ys[v];
        pen.moveTo(x + radius, y);
        pen.arc(x, y, radius, 0, 6.2832);
      }
      pen.fill();
    }
    if ($("colour").value === "prediction" && data.classes !== null && truth !== null) { // rings: wrong now
      const start = at(film) * n;
      pen.strokeStyle = dark() ? "#ffffff" : "#000000";
      pen.lineWidth = Math.max(1, panel.ratio);
      pen.beginPath();
      for (let v = 0; v < n; v++) {
        if (film.prediction[start + v] === truth[v]) continue;
        pen.moveTo(panel.xs[v] + radius, panel.ys[v]);
        pen.arc(panel.xs[v], panel.ys[v], radius, 0, 6.2832);
      }
      pen.stroke();
    }
    if (view.node >= 0) {
      pen.strokeStyle = dark() ? "#ffffff" : "#000000";
      pen.lineWidth = 1.5 * panel.ratio;
      pen.beginPath();
      for (const k of incoming[view.node]) { pen.moveTo(panel.xs[source[k]], panel.ys[source[k]]); pen.lineTo(panel.xs[view.node], panel.ys[view.node]); }
      pen.stroke();
      pen.lineWidth = 3 * panel.ratio;
      pen.beginPath();
      pen.arc(panel.xs[view.node], panel.ys[view.node], radius + 4 * panel.ratio, 0, 6.2832);
      pen.stroke();
    }
  }

  const level2residual = level => 10 ** (data.residualFloor + data.residualDecades * level / 63);
  const short = sheafdeqChart.short;

  function facts(panel) {
    const film = filmOf(panel), k = at(film), start = k * n;
    let moving = 0;
    for (let v = 0; v < n; v++) moving += level2residual(film.residual[start + v]) > 1e-3;
    const score = film.score[k], parts = [];
    if (score !== null) parts.push(`${data.score} ${short(score)}`);
    parts.push(`largest residual ${short(film.largest[k])}`, moving ? `${moving} of ${n} nodes move by more than 1e-3` : "all nodes at rest (1e-3)");
    if (film.delays && view.time >= 1 && view.time < film.frames) {
      parts.push(`${drawn.of.toLocaleString("en")} late messages${drawn.late < drawn.of ? ` (${drawn.late.toLocaleString("en")} drawn)` : ""}`);
    }
    return parts.join(" · ");
  }

  function show() {
    for (const panel of shown()) {
      draw(panel);
      const text = facts(panel);
      $(`${panel.side}-facts`).textContent = text;
      panel.canvas.setAttribute("aria-label", `${filmOf(panel).title}, iteration ${at(filmOf(panel))}: ${text}`);
    }
    $("time").value = view.time;
    $("when").textContent = `iteration ${view.time} of ${longest()}`;
    for (const chart of charts) chart.moveTo(view.time);
    if (view.node >= 0 && !view.playing) detail();
  }

  // ------------------------------------------------------------------ playing
  let last = 0, owed = 0, counted = 0, busy = 0, since = 0;

  function say(frames, milliseconds) {
    const late = shown().some(panel => filmOf(panel).delays) ? `, ${drawn.late.toLocaleString("en")} late messages` : "";
    const what = `${n.toLocaleString("en")} nodes, ${e.toLocaleString("en")} edges${late}, ${shown().length} panel${shown().length > 1 ? "s" : ""}`;
    $("rate").textContent = frames >= 30 ? `${frames.toFixed(0)} frames a second (${what})`
      : `${frames.toFixed(0)} frames a second, fewer than 30: drawing takes ${milliseconds.toFixed(0)} ms of each ${(1000 / Math.max(frames, 0.1)).toFixed(0)} ms (${what}); `
        + (milliseconds > 20 ? "one panel, or no edges and messages, is faster" : "the rest is the browser or other work on this machine");
  }

  function tick(now) {
    if (!view.playing) return;
    if (last) owed += (now - last) / 1000 * Number($("speed").value);
    last = now;
    const steps = Math.min(Math.floor(owed), longest() - view.time);
    owed -= Math.floor(owed);
    if (steps > 0) view.time += steps;
    const begin = performance.now();
    show();
    busy += performance.now() - begin;
    counted += 1;
    if (!since) since = now;
    if (now - since >= 1000) {
      const frames = counted * 1000 / (now - since), cost = busy / counted;
      say(frames, cost);
      if (cost > 24) lateAllowed = Math.max(400, Math.round(lateAllowed * 0.7));
      [counted, busy, since] = [0, 0, now];
    }
    if (view.time >= longest()) { pause(); return; }
    requestAnimationFrame(tick);
  }
  function play() {
    if (view.time >= longest()) view.time = 0;
    view.playing = true;
    [last, owed, counted, busy, since] = [0, 0, 0, 0, 0];
    $("play").textContent = "Pause";
    requestAnimationFrame(tick);
  }
  function pause() {
    view.playing = false;
    $("play").textContent = "Play";
    show();
  }
  const go = time => { view.time = Math.max(0, Math.min(longest(), time)); show(); };

  // ------------------------------------------------------------------ one node
  function heat(values, rows, columns, colourOf, size, label) {
    const canvas = html("canvas", { className: "heat", width: columns * size, height: rows * size });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
    const pen = canvas.getContext("2d");
    for (let i = 0; i < rows * columns; i++) { pen.fillStyle = colourOf(values[i]); pen.fillRect(i % columns * size, Math.floor(i / columns) * size, size, size); }
    return canvas;
  }
  const signed = share => share >= 0 ? `rgb(${mix([245, 245, 245], [178, 24, 43], Math.min(share, 1)).join(",")})` : `rgb(${mix([245, 245, 245], [33, 102, 172], Math.min(-share, 1)).join(",")})`;
  const latest = (frames, time) => { let place = 0; frames.forEach((frame, i) => { if (frame <= time) place = i; }); return place; };
  const valueName = level => data.classes !== null ? className(level) : data.range ? short(data.range[0] + (data.range[1] - data.range[0]) * level / 63) : String(level);

  function nodeIn(film) {
    const v = view.node, k = at(film), parts = [];
    const line = [`predicted ${valueName(film.prediction[k * n + v])}`, `residual ${short(level2residual(film.residual[k * n + v]))}`, `disagreement ${(film.disagreement[k * n + v] / 63).toFixed(2)}`];
    parts.push(html("h3", { textContent: film.title }), html("p", { className: "note", textContent: `Iteration ${k}: ${line.join(", ")}.` }));
    if (film.states) {
      const place = latest(film.states.frames, k), [levels, stalk, channels] = film.shape;
      const values = film.states.values.subarray((place * n + v) * film.width, (place * n + v + 1) * film.width);
      const size = Math.max(4, Math.min(16, Math.floor(360 / channels)));
      const range = `${short(film.states.low)} (dark) to ${short(film.states.high)} (bright)`;
      parts.push(html("p", { className: "note", textContent: `State of iteration ${film.states.frames[place]}: ${levels > 1 ? `${levels} levels of ` : ""}${stalk} rows (stalk) of ${channels} channels, from ${range}.` }),
        heat(values, levels * stalk, channels, level => RAMP[Math.round(level * 63 / (film.states.levels - 1))], size, `state of node ${v}, iteration ${film.states.frames[place]}`));
    }
    const place = film.maps ? latest(film.maps.frames, k) : 0;
    const rows = incoming[v].slice(0, 40).map(edge => {
      const u = source[edge];
      const jump = html("button", { type: "button", className: "quiet", textContent: String(u) });
      jump.addEventListener("click", () => choose(u));
      const cells = [html("td", {}, jump), html("td", { textContent: truth === null ? "–" : valueName(truth[u]) }), html("td", { textContent: valueName(film.prediction[k * n + u]) })];
      if (film.delays) {
        const byte = view.time >= 1 && view.time < film.frames ? film.delays[(view.time - 1) * e + edge] : 0;
        cells.push(html("td", { textContent: byte === 0 ? "asleep" : byte === 1 ? "fresh" : `${byte - 1} late` }));
      }
      if (film.maps) {
        const { dim, entry, levels, names } = film.maps, middle = (levels - 1) / 2, group = html("div", { className: "matrices" });
        names.forEach((name, which) => {
          const start = (place * e + edge) * entry + which * dim * dim;
          const values = [...film.maps.values.subarray(start, start + dim * dim)].map(level => (level - middle) / middle);
          const text = values.map(share => (share * film.maps.size).toFixed(2)).join(", ");
          const picture = heat(values, dim, dim, signed, 12, `${name} of the edge from ${u}: ${text}`);
          picture.title = `${name}: ${text}`;
          group.append(picture);
        });
        cells.push(html("td", {}, group));
      }
      return html("tr", {}, ...cells);
    });
    const heads = ["Neighbour", "Class", "Predicts"];
    if (film.delays) heads.push("Message");
    if (film.maps) heads.push(`${film.maps.names.join(", ")} of iteration ${film.maps.frames[place]}`);
    const region = html("div", { className: "scroll", tabIndex: 0 }, html("table", {}, html("thead", {}, html("tr", {}, ...heads.map(text => html("th", { scope: "col", textContent: text })))), html("tbody", {}, ...rows)));
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", `neighbours of node ${v}, ${film.title}`);
    parts.push(region);
    if (film.maps) parts.push(html("p", { className: "note", textContent: `Matrices from −${short(film.maps.size)} (blue) to ${short(film.maps.size)} (red).` }));
    if (incoming[v].length > 40) parts.push(html("p", { className: "note", textContent: `The first 40 of ${incoming[v].length} neighbours.` }));
    return parts;
  }

  function detail() {
    const v = view.node;
    if (v < 0) return;
    const own = truth === null ? "" : `, ${data.classes !== null ? "" : "target "}${valueName(truth[v])}`;
    $("node-title").textContent = `Node ${v}${own}, ${incoming[v].length} neighbour${incoming[v].length === 1 ? "" : "s"}`;
    $("detail").replaceChildren(...shown().flatMap(panel => nodeIn(filmOf(panel))));
  }

  function choose(v) {
    view.node = v;
    $("node").value = v;
    show();
    detail();
  }

  function nearest(panel, event) {
    const box = panel.canvas.getBoundingClientRect();
    const x = (event.clientX - box.left) * panel.ratio, y = (event.clientY - box.top) * panel.ratio;
    let best = -1, distance = (14 * panel.ratio) ** 2;
    for (let v = 0; v < n; v++) {
      const d = (panel.xs[v] - x) ** 2 + (panel.ys[v] - y) ** 2;
      if (d < distance) [best, distance] = [v, d];
    }
    return best;
  }

  // ------------------------------------------------------------------ curves
  const charts = [];
  function curves() {
    charts.length = 0;
    $("charts").replaceChildren();
    const place = $("charts"), picked = shown().map(filmOf);
    const colours = ["#0072B2", "#D55E00"];
    const series = key => picked.map((film, i) => ({ name: film.title, colour: colours[i], dash: i ? "6 3" : "", x: film[key].map((_, k) => k), y: film[key] })).filter(entry => entry.y.some(value => value !== null));
    const marks = [...new Set(picked.map(film => film.horizon))].map(value => [value, "trained horizon"]);
    const add = (title, y, key, log) => { const found = series(key); if (found.length) charts.push(sheafdeqChart.lines(place, { title, x: "iteration", y, log, marks, series: found })); };
    add("Largest residual of a node", "relative change", "largest", true);
    add("Median residual", "relative change", "median", true);
    add("Score", data.score, "score", false);
  }

  // ------------------------------------------------------------------ controls
  function legend() {
    const kind = $("colour").value, parts = [];
    const swatch = colour => { const c = html("canvas", { width: 14, height: 14 }), pen = c.getContext("2d"); pen.fillStyle = colour; pen.fillRect(0, 0, 14, 14); c.setAttribute("aria-hidden", "true"); return c; };
    const ramp = () => { const c = html("canvas", { width: 128, height: 12 }), pen = c.getContext("2d"); RAMP.forEach((colour, i) => { pen.fillStyle = colour; pen.fillRect(2 * i, 0, 2, 12); }); c.setAttribute("aria-hidden", "true"); return c; };
    if ((kind === "class" || kind === "prediction") && data.classes !== null) {
      for (let c = 0; c < data.classes; c++) parts.push(html("span", {}, swatch(classColour(c)), className(c)));
      if (kind === "prediction" && truth !== null) parts.push(html("span", { textContent: "ringed: wrong now" }));
    } else {
      const ends = kind === "residual" ? [`1e${data.residualFloor} or less`, `1e${data.residualFloor + data.residualDecades} or more`]
        : kind === "disagreement" ? ["agrees with its neighbours", "does not"] : (data.range || [0, 1]).map(short);
      parts.push(html("span", {}, ends[0], ramp(), ends[1]));
    }
    if (shown().some(panel => filmOf(panel).delays)) parts.push(html("span", {}, "message late by"), ...AGES.map((colour, i) => html("span", {}, swatch(colour), i === AGES.length - 1 ? `${i + 1}+` : String(i + 1))));
    $("legend").replaceChildren(...parts);
  }

  async function change() {
    const before = view.playing;
    view.playing = false;
    [view.left, view.right] = [Number($("left").value), Number($("right").value)];
    view.layout = Number($("layout").value);
    for (const panel of shown()) {
      await load(filmOf(panel));
      $(`${panel.side}-title`).textContent = filmOf(panel).title;
      $(`${panel.side}-title`).title = filmOf(panel).note;
    }
    $("panels").classList.toggle("single", view.right < 0);
    for (const panel of panels) panel.stale = true;
    $("time").max = longest();
    view.time = Math.min(view.time, longest());
    curves();
    legend();
    show();
    detail();
    if (before) play(); else $("play").textContent = "Play";
  }

  films.forEach((film, i) => { $("left").append(html("option", { value: i, textContent: film.title })); $("right").append(html("option", { value: i, textContent: film.title })); });
  $("right").prepend(html("option", { value: -1, textContent: "nothing" }));
  layouts.forEach((layout, i) => $("layout").append(html("option", { value: i, textContent: layout.name })));
  if (truth === null) $("colour").querySelector("option[value=class]").remove();

  const first = (kind, actor) => films.findIndex(film => film.kind === kind && (!actor || film.actor === actor));
  const actors = [...new Set(films.map(film => film.actor))];
  const presets = [];
  if (actors.length > 1) presets.push(["Two models", first("default", actors[0]), first("default", actors[1])]);
  for (const actor of actors) {
    const suffix = actors.length > 1 ? `: ${actor}` : "";
    if (first("start", actor) >= 0) presets.push([`Two starts${suffix}`, first("default", actor), first("start", actor)]);
    if (first("late", actor) >= 0) presets.push([`Late messages${suffix}`, first("default", actor), first("late", actor)]);
  }
  for (const [name, left, right] of presets) {
    const button = html("button", { type: "button", textContent: name });
    button.addEventListener("click", () => { $("left").value = left; $("right").value = right; change(); });
    $("presets").append(button);
  }

  for (const id of ["left", "right", "layout"]) $(id).addEventListener("change", change);
  for (const id of ["colour", "edges", "late"]) $(id).addEventListener("change", () => { for (const panel of panels) panel.stale = true; legend(); show(); });
  $("controls").addEventListener("submit", event => event.preventDefault());
  $("play").addEventListener("click", () => view.playing ? pause() : play());
  $("previous").addEventListener("click", () => go(view.time - 1));
  $("next").addEventListener("click", () => go(view.time + 1));
  $("time").addEventListener("input", () => go(Number($("time").value)));
  $("home").addEventListener("click", () => { Object.assign(view, { zoom: 1, x: 0.5, y: 0.5 }); for (const panel of panels) panel.stale = true; show(); });
  $("pick").addEventListener("submit", event => {
    event.preventDefault();
    const v = Number($("node").value);
    if (Number.isInteger(v) && v >= 0 && v < n) choose(v);
    else $("detail").replaceChildren(html("p", { className: "note", textContent: `There is no node ${$("node").value}: nodes are numbered 0 to ${n - 1}.` }));
  });
  $("node").max = n - 1;
  $("theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; nameTheme(); for (const panel of panels) panel.stale = true; show(); });
  document.addEventListener("keydown", event => {
    if (event.target.closest("input, select, button, textarea, summary, a")) return;
    if (event.key === " ") { event.preventDefault(); if (view.playing) pause(); else play(); }
    if (event.key === "ArrowRight") go(view.time + 1);
    if (event.key === "ArrowLeft") go(view.time - 1);
  });
  for (const panel of panels) {
    let grip = null;
    panel.canvas.addEventListener("pointerdown", event => { grip = { x: event.clientX, y: event.clientY, moved: false }; panel.canvas.setPointerCapture(event.pointerId); });
    panel.canvas.addEventListener("pointermove", event => {
      if (!grip) return;
      const dx = event.clientX - grip.x, dy = event.clientY - grip.y;
      if (!grip.moved && Math.hypot(dx, dy) < 4) return;
      grip = { x: event.clientX, y: event.clientY, moved: true };
      view.x -= dx * panel.ratio / panel.scale;
      view.y -= dy * panel.ratio / panel.scale;
      for (const other of panels) other.stale = true;
      show();
    });
    panel.canvas.addEventListener("pointerup", event => {
      const click = grip && !grip.moved;
      grip = null;
      if (!click) return;
      const v = nearest(panel, event);
      if (v >= 0) choose(v);
    });
    panel.canvas.addEventListener("wheel", event => {
      event.preventDefault();
      view.zoom = Math.max(0.5, Math.min(30, view.zoom * Math.exp(-event.deltaY / 400)));
      for (const other of panels) other.stale = true;
      show();
    }, { passive: false });
  }
  addEventListener("resize", () => { for (const panel of panels) panel.stale = true; show(); });

  $("stage").hidden = false;
  if (presets.length) { $("left").value = presets[0][1]; $("right").value = presets[0][2]; } else $("right").value = -1;
  await change();
  document.body.dataset.ready = "yes";
})();
