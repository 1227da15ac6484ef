// Curves and point clouds as SVG. Text reaches the page through textContent and attributes only.
"use strict";

const sheafdeqChart = (() => {
  const SPACE = "http://www.w3.org/2000/svg";
  const WIDTH = 640, HEIGHT = 300, LEFT = 62, RIGHT = 14, TOP = 20, BOTTOM = 40;

  function svg(name, attributes = {}, text) {
    const element = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function html(name, properties = {}, ...children) {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  }

  const ink = colour => /^#0{6}$/.test(colour) ? "currentColor" : colour;
  const short = value => value === 0 ? "0" : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5 ? value.toExponential(1) : String(Number(value.toPrecision(4)));

  function ticks(low, high, log) {
    if (log) {
      const first = Math.floor(low), last = Math.ceil(high), step = Math.max(1, Math.ceil((last - first) / 6));
      const found = [];
      const parts = last - first > 3 ? [1] : [1, 2, 5];
      for (let power = first; power <= last; power += step) {
        for (const part of parts) {
          const tick = power + Math.log10(part);
          if (tick >= low - 1e-9 && tick <= high + 1e-9) found.push(tick);
        }
      }
      return found;
    }
    const rough = (high - low) / 5, size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map(f => f * size).find(s => s >= rough);
    const found = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9 * step; value += step) found.push(Number(value.toPrecision(12)));
    return found;
  }

  // Smallest and largest of what is drawn; a logarithmic axis works in powers of ten and lifts zeros to its floor.
  function scale(values, log, from, to) {
    let usable = values.filter(v => v !== null && Number.isFinite(v) && (!log || v > 0));
    if (!usable.length) usable = [log ? 0.1 : 0, 1];
    const floor = usable.reduce((a, b) => Math.min(a, b)), top = usable.reduce((a, b) => Math.max(a, b));
    let low = log ? Math.log10(floor) : floor, high = log ? Math.log10(top) : top;
    if (high - low < 1e-12) { low -= log ? 0.5 : Math.abs(low) * 0.05 || 0.5; high += log ? 0.5 : Math.abs(high) * 0.05 || 0.5; }
    const pad = 0.03 * (high - low);
    const at = value => from + (to - from) * ((log ? Math.log10(Math.max(value, floor)) : value) - low + pad) / (high - low + 2 * pad);
    return { low, high, floor, at, log, ticks: ticks(low, high, log).map(tick => log ? Number((10 ** tick).toPrecision(3)) : tick) };
  }

  function frame(picture, spec, x, y) {
    for (const tick of y.ticks) {
      const place = y.at(tick);
      picture.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: place, y2: place }));
      picture.append(svg("text", { x: LEFT - 6, y: place + 4, "text-anchor": "end" }, short(tick)));
    }
    for (const tick of x.ticks) picture.append(svg("text", { x: x.at(tick), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, short(tick)));
    picture.append(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }));
    picture.append(svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, spec.x));
    picture.append(svg("text", { x: 12, y: (HEIGHT - BOTTOM) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(HEIGHT - BOTTOM) / 2})` }, spec.y.length > 46 ? spec.y.slice(0, 45) + "…" : spec.y));
    let last = -Infinity;
    for (const [place, text] of spec.marks || []) {
      const at = x.at(place);
      if (!(at >= LEFT && at <= WIDTH - RIGHT)) continue;
      picture.append(svg("line", { class: "mark", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }));
      if (at - last > 110) { picture.append(svg("text", { x: Math.min(at, WIDTH - 110), y: TOP - 6 }, text)); last = at; }
    }
  }

  function path(series, x, y) {
    let text = "", pen = false;
    for (let i = 0; i < series.x.length; i++) {
      const value = series.y[i];
      if (value === null || (y.log && value < 0)) { pen = false; continue; }
      text += `${pen ? "L" : "M"}${x.at(series.x[i]).toFixed(1)} ${y.at(value).toFixed(1)}`;
      pen = true;
    }
    return text;
  }

  function draw(figure, spec, hidden) {
    const visible = spec.series.filter((_, place) => !hidden.has(place));
    const shown = visible.length ? visible : spec.series;
    const x = scale(shown.flatMap(s => s.x), false, LEFT, WIDTH - RIGHT);
    const y = scale(shown.flatMap(s => s.y), spec.log, HEIGHT - BOTTOM, TOP);
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    picture.append(svg("title", {}, `${spec.title}: ${spec.y} against ${spec.x}; the same numbers stand in the table below`));
    frame(picture, spec, x, y);
    spec.series.forEach((series, place) => {
      if (!hidden.has(place)) picture.append(svg("path", { class: "curve", d: path(series, x, y), stroke: ink(series.colour), "stroke-dasharray": series.dash || "none" }));
    });
    const now = svg("line", { class: "now", x1: -9, x2: -9, y1: TOP, y2: HEIGHT - BOTTOM });
    picture.append(now);
    figure.moveTo = place => { // a mark that follows a film
      figure.now = place;
      now.setAttribute("x1", x.at(place));
      now.setAttribute("x2", x.at(place));
    };
    if (figure.now !== undefined) figure.moveTo(figure.now);
    const cursor = svg("line", { class: "cursor", x1: -9, x2: -9, y1: TOP, y2: HEIGHT - BOTTOM });
    picture.append(cursor);
    const readout = figure.querySelector(".readout");
    picture.addEventListener("pointermove", event => {
      const box = picture.getBoundingClientRect(), at = (event.clientX - box.left) * WIDTH / box.width;
      let best = null;
      for (const series of shown) for (const value of series.x) if (best === null || Math.abs(x.at(value) - at) < Math.abs(x.at(best) - at)) best = value;
      if (best === null) return;
      cursor.setAttribute("x1", x.at(best));
      cursor.setAttribute("x2", x.at(best));
      const values = shown.map(series => { const i = series.x.indexOf(best); return i < 0 || series.y[i] === null ? null : `${series.name} ${short(series.y[i])}`; });
      readout.textContent = `${spec.x} ${short(best)}: ${values.filter(Boolean).slice(0, 8).join(", ")}`;
    });
    picture.addEventListener("pointerleave", () => { cursor.setAttribute("x1", -9); cursor.setAttribute("x2", -9); readout.textContent = ""; });
    figure.querySelector(".picture").replaceChildren(picture);
  }

  function numbers(spec) {
    const places = [...new Set(spec.series.flatMap(s => s.x))].sort((a, b) => a - b);
    const step = Math.max(1, Math.ceil(places.length / 60));
    const rows = places.filter((_, i) => i % step === 0 || i === places.length - 1);
    const look = spec.series.map(series => new Map(series.x.map((value, i) => [value, series.y[i]])));
    const head = html("tr", {}, html("th", { scope: "col", textContent: spec.x }), ...spec.series.map(s => html("th", { scope: "col", textContent: s.name })));
    const body = rows.map(place => html("tr", {}, html("th", { scope: "row", textContent: short(place) }),
      ...look.map(values => html("td", { textContent: values.has(place) && values.get(place) !== null ? short(values.get(place)) : "–" }))));
    return html("table", {}, html("thead", {}, head), html("tbody", {}, ...body));
  }

  function lines(container, spec) {
    const hidden = new Set();
    const figure = html("figure", { className: "chart" }, html("figcaption", { textContent: spec.title }), html("div", { className: "picture" }),
      html("div", { className: "readout" }));
    const legend = html("div", { className: "legend" });
    spec.series.forEach((series, place) => {
      const swatch = svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
      swatch.append(svg("path", { class: "curve", d: "M0 5H26", stroke: ink(series.colour), "stroke-dasharray": series.dash || "none" }));
      const toggle = html("button", { type: "button" }, swatch, html("span", { textContent: series.name }));
      toggle.setAttribute("aria-pressed", "true");
      toggle.addEventListener("click", () => {
        if (hidden.has(place)) hidden.delete(place); else hidden.add(place);
        toggle.setAttribute("aria-pressed", String(!hidden.has(place)));
        draw(figure, spec, hidden);
      });
      legend.append(toggle);
    });
    figure.append(legend);
    const details = html("details", {}, html("summary", { textContent: "As a table" }));
    details.addEventListener("toggle", () => {
      if (!details.open || details.querySelector("table")) return;
      const region = html("div", { className: "scroll", tabIndex: 0 }, numbers(spec));
      region.setAttribute("role", "region");
      region.setAttribute("aria-label", spec.title);
      details.append(region);
    });
    figure.append(details);
    container.append(figure);
    draw(figure, spec, hidden);
    return figure;
  }

  const SHAPES = {
    certified: (x, y) => svg("circle", { cx: x, cy: y, r: 5 }),
    refuted: (x, y) => svg("path", { d: `M${x - 5} ${y - 5}L${x + 5} ${y + 5}M${x - 5} ${y + 5}L${x + 5} ${y - 5}`, "stroke-width": 3 }),
    "two candidates": (x, y) => svg("path", { d: `M${x - 6} ${y}H${x + 6}M${x} ${y - 6}V${y + 6}`, "stroke-width": 3 }),
    "not certified": (x, y) => svg("rect", { x: x - 4.5, y: y - 4.5, width: 9, height: 9 }),
    "": (x, y) => svg("path", { d: `M${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}L${x - 6} ${y}Z` }),
  };

  // Points that lead to pages; named ones carry their text, the others say it when asked.
  function cloud(container, spec) {
    const figure = html("figure", { className: "chart" }, html("figcaption", { textContent: spec.title }), html("div", { className: "picture" }), html("div", { className: "readout" }));
    const x = scale(spec.points.map(p => p.x), true, LEFT, WIDTH - RIGHT), y = scale(spec.points.map(p => p.y), false, HEIGHT - BOTTOM, TOP);
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group" });
    picture.setAttribute("aria-label", spec.title);
    frame(picture, spec, x, y);
    const readout = figure.querySelector(".readout");
    const named = [];
    for (const point of spec.points) {
      const link = svg("a", { href: point.href, "aria-label": `${point.label}: ${spec.y} ${short(point.y)}, ${spec.x} ${short(point.x)}, ${point.verdict || "no certificate"}` });
      const place = [x.at(point.x), y.at(point.y)];
      const shape = (SHAPES[point.verdict] || SHAPES[""])(...place);
      shape.setAttribute("stroke", ink(point.colour));
      shape.setAttribute("fill", point.strong ? ink(point.colour) : "none");
      link.append(svg("circle", { cx: place[0], cy: place[1], r: 9, fill: "transparent" }), shape);
      const say = () => { readout.textContent = link.getAttribute("aria-label"); };
      link.addEventListener("pointerenter", say);
      link.addEventListener("focus", say);
      picture.append(link);
      if (point.strong) named.push([place, point.label]);
    }
    let last = -Infinity;
    for (const [[px, py], text] of named.sort((a, b) => a[0][1] - b[0][1])) {
      const row = Math.max(py + 4, last + 13);
      const right = px > WIDTH / 2;
      picture.append(svg("text", { class: "strong", x: right ? px - 10 : px + 10, y: row, "text-anchor": right ? "end" : "start" }, text.length > 44 ? text.slice(0, 43) + "…" : text));
      last = row;
    }
    figure.querySelector(".picture").append(picture);
    figure.append(html("p", { className: "note", textContent: "● certified  ■ not certified  ✕ refuted  ✚ two candidates  ◆ no certificate; filled: chosen" }));
    container.append(figure);
    return figure;
  }

  return { lines, cloud, html, svg, short };
})();
