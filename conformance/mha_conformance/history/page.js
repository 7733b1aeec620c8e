"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const narrow = matchMedia("(max-width: 760px)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Set();

function figureOf(element) {
  return data[element.dataset.section].figures[element.dataset.figure];
}

function template() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--grid"), linecolor: colour("--rule"), zeroline: false, automargin: true };
  return {
    layout: {
      font: { family: "system-ui, sans-serif", size: 12, color: colour("--ink") },
      paper_bgcolor: "transparent",
      plot_bgcolor: "transparent",
      hovermode: "closest",
      dragmode: narrow.matches ? false : "zoom", // on a narrow screen, dragging scrolls
      hoverlabel: { align: "left", bgcolor: colour("--raised"), bordercolor: colour("--rule"), font: { family: "system-ui, sans-serif", color: colour("--ink") } },
      legend: { orientation: "h", yref: "container", y: 1, yanchor: "top", x: 0, xanchor: "left" },
      margin: { l: 45, r: 35, t: 58, b: 40 },
      xaxis: { ...axis, showgrid: false, showline: true },
      yaxis: axis,
    },
  };
}

function draw(element) {
  const figure = figureOf(element);
  const texts = data[element.dataset.section].hovers;
  const traces = figure.traces.map((trace) => ({ ...trace, customdata: texts }));
  const layout = { ...figure[narrow.matches ? "narrow" : "wide"], template: template(), uirevision: "same" };
  drawn.add(element);
  return Plotly.react(element, traces, layout, { responsive: true, displayModeBar: false });
}

// Figures are drawn when they come near the window; until then their space is reserved.
const near = new IntersectionObserver(
  (entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      near.unobserve(entry.target);
      draw(entry.target);
    }
  },
  { rootMargin: "800px" },
);

function reserve(element) {
  element.style.minHeight = `${figureOf(element)[narrow.matches ? "narrow" : "wide"].height}px`;
}

// The lines that rose most since a date, each against its first value since then on the processor of its newest value.
const WORST = 10;

function worstSince(since, date) {
  const { dates, lines } = since;
  const rises = lines.map(({ anchor, name, values, ...line }) => {
    const processors = since.processors[line.processors];
    const last = values.findLastIndex((value) => value !== null);
    const first = values.findIndex((value, at) => value !== null && dates[at] >= date && processors[at] === processors[last]);
    const [before, after] = processors[last] && first >= 0 ? [values[first], values[last]] : [0, 0];
    const rose = after - before > Math.max(line.smallest, line.tolerance * Math.abs(before));
    return { anchor, name, rose, factor: before > 0 ? after / before : Infinity };
  });
  return rises.filter((rise) => rise.rose).sort((a, b) => b.factor - a.factor).slice(0, WORST);
}

function cell(row, text, kind = "td") {
  const made = document.createElement(kind);
  made.textContent = text;
  row.append(made);
  return made;
}

function showWorst(input) {
  const rises = worstSince(data[input.dataset.section].since, input.value);
  const table = document.createElement("table");
  for (const rise of rises) {
    const row = table.insertRow();
    const link = document.createElement("a");
    link.href = `#${rise.anchor}`;
    link.textContent = rise.name[0];
    cell(row, "", "th").append(link);
    rise.name.slice(1).forEach((text) => cell(row, text));
    cell(row, Number.isFinite(rise.factor) ? rise.factor.toFixed(rise.factor < 1.1 ? 3 : 2) : "–").className = "number";
  }
  const place = document.getElementById(`${input.dataset.section}--since`);
  place.replaceChildren(rises.length ? table : "No line rose by more than its tolerance.");
}

for (const input of document.querySelectorAll("input[type=date]")) {
  input.addEventListener("input", () => showWorst(input));
  showWorst(input);
}

const figures = [...document.querySelectorAll(".figure")];
for (const element of figures) {
  reserve(element);
  near.observe(element);
}
for (const query of [narrow, dark]) {
  query.addEventListener("change", () => {
    figures.forEach(reserve);
    drawn.forEach(draw);
  });
}
addEventListener("beforeprint", () => figures.forEach(draw));
