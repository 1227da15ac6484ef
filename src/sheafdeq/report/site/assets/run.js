// The curves of one run; data/<run>.js calls this.
"use strict";

function sheafdeqReceive(run) {
  const place = document.getElementById("charts");
  place.replaceChildren();
  const charts = Object.values(run.charts);
  for (const chart of charts) sheafdeqChart.lines(place, chart);
  if (!charts.length) place.append(sheafdeqChart.html("p", { className: "note", textContent: "The record holds no curves." }));
}
