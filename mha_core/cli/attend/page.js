"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const count = data.tokens.length;
const stored = new Uint16Array(Uint8Array.from(atob(data.weights), (letter) => letter.charCodeAt(0)).buffer);
const THRESHOLD = 0.05; // of lines that are drawn while no token is pointed at

const state = { layer: data.layer, head: data.head, withoutSpecial: false, pointed: null, kept: null };

// The weights of a head, or their mean, as rows; null where a special token is left out.
function weights(layer, head) {
  const heads = head === "mean" ? [...Array(data.heads).keys()] : [head];
  const at = (row, column) => {
    if (state.withoutSpecial && (data.special[row] || data.special[column])) return null;
    const sum = heads.reduce((sum, each) => sum + stored[((layer * data.heads + each) * count + row) * count + column], 0);
    return sum / heads.length / data.one;
  };
  return data.tokens.map((_, row) => data.tokens.map((_, column) => at(row, column)));
}

let chosen; // the weights that are shown

// Colours: by the square root of the weight, from --low over --middle at 1/4 to --high.

function stops() {
  const style = getComputedStyle(document.documentElement);
  return ["--low", "--middle", "--high"].map((name) => {
    const hex = style.getPropertyValue(name).trim();
    return [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));
  });
}

function colour([low, middle, high], weight) {
  const at = 2 * Math.sqrt(Math.min(1, weight));
  const [from, to, part] = at < 1 ? [low, middle, at] : [middle, high, at - 1];
  return from.map((each, index) => Math.round(each + part * (to[index] - each)));
}

function drawGlance() {
  const palette = stops();
  for (const button of document.querySelectorAll("#glance button")) {
    const map = weights(Number(button.dataset.layer), headOf(button.dataset.head));
    const canvas = button.firstElementChild;
    canvas.width = canvas.height = count;
    const context = canvas.getContext("2d");
    const image = context.createImageData(count, count);
    map.flat().forEach((weight, index) => {
      image.data.set(weight === null ? [0, 0, 0, 0] : [...colour(palette, weight), 255], 4 * index);
    });
    context.putImageData(image, 0, 0);
  }
}

// Plotly reads some HTML in labels; none is meant.
function escaped(token) {
  return token.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

function drawHeat() {
  const palette = stops();
  const style = getComputedStyle(document.documentElement);
  const width = element("heat").clientWidth;
  const wide = width > 420;
  const places = shownPlaces();
  const names = places.map((at) => escaped(data.tokens[at]));
  const ticks = places.map((at) => escaped(data.tokens[at].length > 18 ? `${data.tokens[at].slice(0, 17)}…` : data.tokens[at]));
  const scale = [...Array(33).keys()].map((step) => [step / 32, `rgb(${colour(palette, step / 32)})`]);
  for (const small of [0.002, 0.008, 0.018]) scale.push([small, `rgb(${colour(palette, small)})`]); // where the root is steep
  scale.sort((one, other) => one[0] - other[0]);
  const rows = places.map((row) => places.map((column) => chosen[row][column]));
  const words = places.map((row, y) => places.map((column, x) => `${names[y]} → ${names[x]}: ${chosen[row][column].toFixed(3)}`));
  const axis = {
    tickvals: [...places.keys()], ticktext: ticks, range: [-0.5, places.length - 0.5], showgrid: false, zeroline: false,
    ticks: "", automargin: true, tickmode: "array", fixedrange: count < 40,
  };
  const layout = {
    font: { family: "system-ui, sans-serif", size: Math.max(6, Math.min(12, (0.6 * width) / places.length)), color: style.getPropertyValue("--ink").trim() },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", margin: { l: 10, r: 10, t: 10, b: 10 },
    xaxis: { ...axis, side: "top", tickangle: -60 },
    yaxis: { ...axis, range: [places.length - 0.5, -0.5], scaleanchor: "x", constrain: "domain" },
    width, height: wide ? 0.92 * width : width, dragmode: false, uirevision: "same",
  };
  const trace = {
    type: "heatmap", z: rows, text: words, hovertemplate: "%{text}<extra></extra>", zmin: 0, zmax: 1, colorscale: scale,
    xgap: places.length < 40 ? 1 : 0, ygap: places.length < 40 ? 1 : 0, showscale: wide, colorbar: { thickness: 10, outlinewidth: 0, len: 0.8 },
  };
  return Plotly.react("heat", [trace], layout, { displayModeBar: false }).then((plot) => {
    if (plot.listening) return;
    plot.listening = true;
    plot.on("plotly_hover", ({ points: [{ pointIndex }] }) => point({ side: "from", at: shownPlaces()[pointIndex[0]] }));
    plot.on("plotly_unhover", () => point(null));
  });
}

function shownPlaces() {
  return [...data.tokens.keys()].filter((at) => !(state.withoutSpecial && data.special[at]));
}

// Lines: from the tokens that look to those that are looked at.

function makeTokens() {
  for (const side of ["from", "to"]) {
    element(side).replaceChildren(
      ...data.tokens.map((token, at) => {
        const item = document.createElement("li");
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = token;
        button.addEventListener("pointerenter", () => point({ side, at }));
        button.addEventListener("pointerleave", () => point(null));
        button.addEventListener("focus", () => point({ side, at }));
        button.addEventListener("blur", () => point(null));
        button.addEventListener("click", () => keep({ side, at }));
        item.append(button);
        return item;
      }),
    );
  }
  element("links").setAttribute("viewBox", `0 0 100 ${count}`);
}

function keep(token) {
  const again = state.kept !== null && state.kept.side === token.side && state.kept.at === token.at;
  state.kept = again ? null : token;
  writeAddress();
  drawLines();
}

function point(token) {
  state.pointed = token;
  drawLines();
}

function drawLines() {
  const token = state.pointed ?? state.kept;
  const links = [];
  chosen.forEach((row, from) =>
    row.forEach((weight, to) => {
      const here = token === null ? weight >= THRESHOLD : (token.side === "from" ? from : to) === token.at && weight > 0.001;
      if (weight !== null && here) links.push([from, to, weight]);
    }),
  );
  const paths = links.map(([from, to, weight]) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", `M 0 ${from + 0.5} C 40 ${from + 0.5}, 60 ${to + 0.5}, 100 ${to + 0.5}`);
    path.setAttribute("stroke-opacity", Math.sqrt(weight).toFixed(3));
    return path;
  });
  element("links").replaceChildren(...paths);
  for (const side of ["from", "to"]) {
    [...element(side).children].forEach(({ firstElementChild: button }, at) => {
      const other = token !== null && token.side !== side;
      const weight = !other ? null : side === "to" ? chosen[token.at][at] : chosen[at][token.at];
      button.parentElement.style.visibility = state.withoutSpecial && data.special[at] ? "hidden" : "visible";
      button.classList.toggle("pointed", token !== null && token.side === side && token.at === at);
      button.style.setProperty("--weight", weight === null ? 0 : Math.sqrt(weight));
      button.title = weight === null ? "" : weight.toFixed(3);
    });
  }
  element("said").textContent = token === null ? "" : said(token);
}

// In words: the strongest three.
function said({ side, at }) {
  const ranked = shownPlaces()
    .map((other) => [data.tokens[other], side === "from" ? chosen[at][other] : chosen[other][at]])
    .sort((one, other) => other[1] - one[1])
    .slice(0, 3)
    .map(([token, weight]) => `${token} ${weight.toFixed(3)}`);
  return `${data.tokens[at]} ${side === "from" ? "→" : "←"} ${ranked.join(", ")}`;
}

// Layer and head: by the menus, by the small maps, and by the address.

function headOf(text) {
  return text === "mean" ? text : Number(text);
}

function choose(layer, head) {
  Object.assign(state, { layer, head });
  writeAddress();
  show();
}

function show() {
  chosen = weights(state.layer, state.head);
  element("layer").value = state.layer;
  element("head").value = state.head;
  for (const button of document.querySelectorAll("#glance button")) {
    const here = Number(button.dataset.layer) === state.layer && headOf(button.dataset.head) === state.head;
    button.setAttribute("aria-pressed", here);
  }
  drawLines();
  drawHeat();
}

// What is chosen and kept stands in the address, to be sent to others.
function writeAddress() {
  const kept = state.kept === null ? "" : `&${state.kept.side}=${state.kept.at}`;
  history.replaceState(null, "", `#layer=${state.layer}&head=${state.head}${kept}`);
}

function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const number = (name, count) => (/^\d+$/.test(asked.get(name)) && Number(asked.get(name)) < count ? Number(asked.get(name)) : null);
  state.layer = number("layer", data.layers) ?? data.layer;
  state.head = asked.get("head") === "mean" ? "mean" : (number("head", data.heads) ?? data.head);
  const side = ["from", "to"].find((side) => number(side, count) !== null);
  state.kept = side === undefined ? null : { side, at: number(side, count) };
}

for (const id of ["layer", "head"]) {
  element(id).addEventListener("change", () => choose(Number(element("layer").value), headOf(element("head").value)));
}
for (const button of document.querySelectorAll("#glance button")) {
  button.addEventListener("click", () => {
    choose(Number(button.dataset.layer), headOf(button.dataset.head));
    document.querySelector(".chosen").scrollIntoView({ block: "nearest" });
  });
}
element("without-special")?.addEventListener("change", ({ target }) => {
  state.withoutSpecial = target.checked;
  if (state.kept !== null && data.special[state.kept.at]) keep(state.kept); // lets it go
  drawGlance();
  show();
});
addEventListener("hashchange", () => {
  readAddress();
  show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  drawGlance();
  drawHeat();
});

readAddress();
makeTokens();
drawGlance();
show();
new ResizeObserver(drawHeat).observe(element("heat").parentElement);
