"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const count = data.tokens.length;
const stored = new Uint16Array(Uint8Array.from(atob(data.weights), (letter) => letter.charCodeAt(0)).buffer);
const LINE = 1.3; // distance between labels, in font sizes; slanted labels need as much
const SMALLEST = 6; // font size in pixels below which labels cannot be read
const NARROW = 420; // a map of at most this many pixels has its colour scale below
const WIDEST = 1400; // pixels of a map that is scrolled sideways, so that its labels can be read; a larger one has none
const THRESHOLD = 0.05; // least weight of a line while no token is pointed at

const state = { layer: String(data.layer), head: String(data.head), withoutSpecial: false, pointed: null, kept: null };

let chosen; // the weights shown

// Weights of a head, or the mean of all heads, row by row; NaN for special tokens that are hidden.
function weights(layer, head) {
  const heads = head === "mean" ? [...Array(data.heads).keys()] : [Number(head)];
  const mean = new Float32Array(count * count);
  for (const each of heads) {
    const start = (layer * data.heads + each) * mean.length;
    for (let at = 0; at < mean.length; at++) mean[at] += stored[start + at] / (data.one * heads.length);
  }
  return mean.map((weight, at) => (isShown(Math.floor(at / count)) && isShown(at % count) ? weight : NaN));
}

function weight(from, to) {
  return chosen[from * count + to];
}

function isShown(at) {
  return !(state.withoutSpecial && data.special[at]);
}

// Colours follow the square root of the weight: --low at 0, --middle at 1/4, --high at 1.

function stops() {
  const style = getComputedStyle(document.documentElement);
  return ["--low", "--middle", "--high"].map((name) => {
    const hex = style.getPropertyValue(name).trim();
    return [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));
  });
}

function colour([low, middle, high], root) {
  const [from, to, part] = root < 0.5 ? [low, middle, 2 * root] : [middle, high, 2 * root - 1];
  return from.map((each, index) => Math.round(each + part * (to[index] - each)));
}

function drawGlance() {
  const palette = stops();
  const colours = [...Array(256).keys()].map((root) => [...colour(palette, root / 255), 255]);
  for (const button of document.querySelectorAll("#glance button")) {
    const map = weights(button.dataset.layer, button.dataset.head);
    const canvas = button.firstElementChild;
    canvas.width = canvas.height = count;
    const context = canvas.getContext("2d");
    const image = context.createImageData(count, count);
    map.forEach((weight, at) => {
      if (!Number.isNaN(weight)) image.data.set(colours[Math.min(255, Math.round(255 * Math.sqrt(weight)))], 4 * at);
    });
    context.putImageData(image, 0, 0);
  }
}

// Plotly interprets some HTML in labels, so tokens are escaped.
function escaped(token) {
  return token.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

// Width of a map, the font size of its labels, and how far slanted labels reach beyond its right edge, all in pixels. The size is 0
// if no label is readable. In a narrow window a map may be wider.
function fitted(labels, available, margins) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = "100px system-ui, sans-serif";
  const widths = labels.map((label) => context.measureText(label).width / 100); // this and the next two in font sizes
  const beyond = Math.max(0, ...widths.map((width, at) => width / 2 - LINE * (labels.length - 1 - at)));
  const lines = LINE * labels.length + Math.max(...widths) + beyond;
  const size = (available - margins) / lines;
  if (size >= SMALLEST) return { width: available, size: Math.min(12, size), beyond: beyond * Math.min(12, size) };
  const width = 9 * lines + margins;
  return available <= NARROW && width <= WIDEST ? { width, size: 9, beyond: 9 * beyond } : { width: available, size: 0, beyond: 0 };
}

function drawHeat() {
  const palette = stops();
  const style = getComputedStyle(document.documentElement);
  const available = element("heat").parentElement.clientWidth;
  const wide = available > NARROW;
  const places = shownPlaces();
  const names = places.map((at) => escaped(data.tokens[at]));
  const labels = places.map((at) => (data.tokens[at].length > 18 ? `${data.tokens[at].slice(0, 17)}…` : data.tokens[at]));
  const { width, size, beyond } = fitted(labels, available, wide ? 90 : 30); // margins, and the colour scale
  const scale = [...Array(33).keys()].map((step) => [(step / 32) ** 2, `rgb(${colour(palette, step / 32)})`]);
  const rows = places.map((from) => places.map((to) => weight(from, to)));
  const words = places.map((from, y) => places.map((to, x) => `${names[y]} → ${names[x]}: ${weight(from, to).toFixed(3)}`));
  const axis = {
    tickvals: [...places.keys()], ticktext: labels.map(escaped), range: [-0.5, places.length - 0.5], showgrid: false, zeroline: false,
    ticks: "", showticklabels: size > 0, tickfont: { size: size || SMALLEST }, automargin: true, tickmode: "array", fixedrange: true,
  };
  const layout = {
    font: { family: "system-ui, sans-serif", size: 12, color: style.getPropertyValue("--ink").trim() },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", margin: { l: 10, r: 10 + (wide ? 0 : beyond), t: 10, b: 10 },
    xaxis: { ...axis, side: "top", tickangle: -60 },
    yaxis: { ...axis, range: [places.length - 0.5, -0.5], scaleanchor: "x", constrain: "domain" },
    width, height: wide ? 0.92 * width : width + 70, dragmode: false, uirevision: "same",
  };
  const trace = {
    type: "heatmap", z: rows, text: words, hovertemplate: "%{text}<extra></extra>", zmin: 0, zmax: 1, colorscale: scale,
    xgap: places.length < 40 ? 1 : 0, ygap: places.length < 40 ? 1 : 0, colorbar: { thickness: 10, outlinewidth: 0, len: 0.8, tickfont: { size: 12 }, ...(wide ? {} : { orientation: "h", x: 0, xanchor: "left", len: Math.min(1, available / width), y: -0.02, yanchor: "top" }) },
  };
  const heat = element("heat");
  if (heat.wide !== wide) {
    Plotly.purge(heat); // it would keep the margins of the other place of the scale
    Object.assign(heat, { wide, listening: false });
  }
  return Plotly.react("heat", [trace], layout, { displayModeBar: false }).then((plot) => {
    if (plot.listening) return;
    plot.listening = true;
    plot.on("plotly_hover", ({ points: [{ pointIndex }] }) => point({ side: "from", at: shownPlaces()[pointIndex[0]] }));
    plot.on("plotly_unhover", () => point(null));
  });
}

function shownPlaces() {
  return [...data.tokens.keys()].filter(isShown);
}

// Lines from attending tokens to attended tokens.

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
        button.addEventListener("focus", () => {
          setStop({ side, at });
          point({ side, at });
        });
        button.addEventListener("keydown", (event) => moveBy(event, { side, at }));
        button.addEventListener("blur", () => point(null));
        button.addEventListener("click", () => keep({ side, at }));
        item.append(button);
        return item;
      }),
    );
  }
  element("links").setAttribute("viewBox", `0 0 100 ${count}`);
}

// Keyboard: Tab stops once at the tokens; arrow keys move between them.

function buttonOf({ side, at }) {
  return element(side).children[at].firstElementChild;
}

function setStop(token) {
  for (const button of document.querySelectorAll("#lines button")) button.tabIndex = -1;
  buttonOf(token).tabIndex = 0;
}

function moveBy(event, { side, at }) {
  const places = shownPlaces();
  const here = places.indexOf(at);
  const next = {
    ArrowUp: { side, at: places[here - 1] },
    ArrowDown: { side, at: places[here + 1] },
    ArrowLeft: { side: "from", at },
    ArrowRight: { side: "to", at },
    Home: { side, at: places[0] },
    End: { side, at: places.at(-1) },
  }[event.key];
  if (next === undefined) return;
  event.preventDefault(); // do not scroll the page
  if (next.at !== undefined) buttonOf(next).focus();
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
  const paths = [];
  const add = (from, to) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", `M 0 ${from + 0.5} C 40 ${from + 0.5}, 60 ${to + 0.5}, 100 ${to + 0.5}`);
    path.setAttribute("stroke-opacity", Math.sqrt(weight(from, to)).toFixed(3));
    paths.push(path);
  };
  for (const from of token?.side === "from" ? [token.at] : data.tokens.keys()) {
    for (const to of token?.side === "to" ? [token.at] : data.tokens.keys()) {
      if (weight(from, to) > (token === null ? THRESHOLD : 0.001)) add(from, to); // false for NaN
    }
  }
  element("links").replaceChildren(...paths);
  for (const side of ["from", "to"]) {
    [...element(side).children].forEach(({ firstElementChild: button }, at) => {
      const looked = token === null || token.side === side ? NaN : side === "to" ? weight(token.at, at) : weight(at, token.at);
      button.parentElement.style.visibility = isShown(at) ? "visible" : "hidden";
      button.classList.toggle("pointed", token !== null && token.side === side && token.at === at);
      button.style.setProperty("--weight", Math.sqrt(looked) || 0);
      button.title = Number.isNaN(looked) ? data.tokens[at] : `${data.tokens[at]} ${looked.toFixed(3)}`;
    });
  }
  element("said").textContent = token === null ? "" : said(token);
}

// Describe a token by its three largest weights.
function said({ side, at }) {
  const ranked = shownPlaces()
    .map((other) => [data.tokens[other], side === "from" ? weight(at, other) : weight(other, at)])
    .sort((one, other) => other[1] - one[1])
    .slice(0, 3)
    .map(([token, weight]) => `${token} ${weight.toFixed(3)}`);
  return `${data.tokens[at]} ${side === "from" ? "→" : "←"} ${ranked.join(", ")}`;
}

// Layer and head are chosen by the menus, the small maps or the address.

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
    button.setAttribute("aria-pressed", button.dataset.layer === state.layer && button.dataset.head === state.head);
  }
  drawLines();
  drawHeat();
}

// The address contains the choice and the selected token, so that it can be shared.
function writeAddress() {
  const kept = state.kept === null ? "" : `&${state.kept.side}=${state.kept.at}`;
  history.replaceState(null, "", `#layer=${state.layer}&head=${state.head}${kept}`);
}

function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const number = (name, count) => (/^\d+$/.test(asked.get(name)) && Number(asked.get(name)) < count ? Number(asked.get(name)) : null);
  state.layer = String(number("layer", data.layers) ?? data.layer);
  state.head = asked.get("head") === "mean" ? "mean" : String(number("head", data.heads) ?? data.head);
  const side = ["from", "to"].find((side) => number(side, count) !== null);
  const first = location.hash === "" && data.token !== null ? { side: "from", at: data.token } : null;
  state.kept = side === undefined ? first : { side, at: number(side, count) };
}

for (const id of ["layer", "head"]) {
  element(id).addEventListener("change", () => choose(element("layer").value, element("head").value));
}
for (const button of document.querySelectorAll("#glance button")) {
  button.addEventListener("click", () => {
    choose(button.dataset.layer, button.dataset.head);
    document.querySelector(".chosen").scrollIntoView({ block: "nearest" });
  });
}
element("without-special")?.addEventListener("change", ({ target }) => {
  state.withoutSpecial = target.checked;
  if (state.kept !== null && data.special[state.kept.at]) keep(state.kept); // deselects it
  setStop({ side: "from", at: shownPlaces()[0] }); // the previous one may be hidden now
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
setStop(state.kept ?? { side: "from", at: 0 });
drawGlance();
show();
new ResizeObserver(drawHeat).observe(element("heat").parentElement);
