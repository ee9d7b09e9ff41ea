// The page of `credo serve`. Everything that comes from the model or from a file is written as text, never as HTML.
"use strict";

const GRID = 41; // points of a curve
const BEYOND = 0.15; // of the training range that a slider goes beyond its ends
const SHOWN = 20; // rows of a predicted table
const DAY = 86400000;
const byId = (id) => document.getElementById(id);
const state = { card: null, token: "", row: {}, column: "", busy: false, again: false, effects: new Map() };

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "circle", "rect", "text"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The server cannot be reached.");
  }
  if (response.ok) return response;
  let sentence = `The server answered ${response.status}.`;
  try {
    sentence = (await response.json()).error || sentence;
  } catch { /* no JSON */ }
  const error = new Error(sentence);
  error.status = response.status;
  throw error;
}

const number = (value) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size < 1e-3 && size > 0)) return value.toExponential(3);
  const digits = size >= 1000 ? Math.ceil(Math.log10(size)) + 1 : 4;
  return new Intl.NumberFormat("en", { maximumSignificantDigits: digits, useGrouping: "min2" }).format(value);
};
const days = (text) => Date.parse(`${text.slice(0, 10)}T00:00:00Z`) / DAY;
const dateOf = (day) => new Date(Math.round(day) * DAY).toISOString().slice(0, 10);
const spec = (name) => state.card.columns.find((column) => column.name === name);

// The ends of a slider: the training range and a part of it beyond.
function range(column) {
  const isDate = column.kind === "date";
  const [low, high] = isDate ? [days(column.lowest), days(column.highest)] : [column.lowest, column.highest];
  const margin = (high - low) * BEYOND || 1;
  let start = low - margin;
  if (!isDate && low >= 0) start = Math.max(start, 0);
  return column.integer || isDate ? [Math.floor(start), Math.ceil(high + margin), low, high] : [start, high + margin, low, high];
}

function choose(name) {
  state.column = name;
  byId("column").value = name;
  for (const cell of document.querySelectorAll(".cell")) cell.classList.toggle("active", cell.dataset.name === name);
  update();
}

function set(name, value) {
  state.row[name] = value;
  if (state.column === name) update();
  else choose(name);
}

// A number as the cells of its column are: percentages are text with their sign.
const written = (column, value) => (column.unit ? `${String(value).replace(".", column.decimal)} ${column.unit}` : value);
const unwritten = (column, cell) => (column.unit ? parseFloat(String(cell).replace(",", ".")) : cell);

function numberCell(column, id) {
  const isDate = column.kind === "date";
  const [start, end, low, high] = range(column);
  const step = column.integer || isDate ? 1 : (end - start) / 400;
  const initial = isDate ? days(column.default) : unwritten(column, column.default);
  const slider = element("input", { type: "range", id, min: start, max: end, step: step === 1 ? 1 : "any", value: initial });
  const field = element("input", { type: isDate ? "date" : "number", "aria-label": `${column.name}, exact`, step: "any" });
  const shown = (value) => (isDate ? dateOf(value) : column.integer ? String(Math.round(value)) : String(Number(value.toPrecision(5))));
  const cell = (value) => (isDate ? dateOf(value) : written(column, column.integer ? Math.round(value) : Number(value.toPrecision(5))));
  field.value = shown(initial);
  slider.addEventListener("input", () => {
    field.value = shown(slider.valueAsNumber);
    set(column.name, cell(slider.valueAsNumber));
  });
  field.addEventListener("input", () => {
    const value = isDate ? days(field.value) : field.valueAsNumber;
    if (!Number.isFinite(value)) return;
    slider.value = value;
    set(column.name, isDate ? field.value : written(column, value));
  });
  state.row[column.name] = cell(initial);
  const hint = isDate ? `${dateOf(low)} to ${dateOf(high)}` : `${number(low)} to ${number(high)}`;
  return { controls: [slider, field], hint, value: () => (isDate ? field.value : written(column, field.valueAsNumber)) };
}

function wordCell(column, id) {
  const words = column.boolean ? ["1", "0"] : column.words;
  const select = element("select", { id });
  for (const word of words) select.append(element("option", { value: word }, column.boolean ? (word === "1" ? "yes (1)" : "no (0)") : word));
  const cell = () => (column.boolean ? Number(select.value) : select.value);
  select.value = column.boolean ? String(column.default >= 0.5 ? 1 : 0) : column.default;
  select.addEventListener("input", () => set(column.name, cell()));
  state.row[column.name] = cell();
  return { controls: [select], hint: "", value: cell };
}

function makeForm() {
  const form = byId("cells");
  form.replaceChildren();
  byId("column").replaceChildren();
  state.card.columns.forEach((column, j) => {
    const id = `cell-${j}`;
    const isWord = column.kind === "category" || column.boolean;
    const made = isWord ? wordCell(column, id) : numberCell(column, id);
    const cell = element("div", { class: "cell" });
    cell.dataset.name = column.name;
    cell.append(element("label", { for: id }, column.name), " ", element("span", { class: "hint" }, made.hint));
    const line = element("div", { class: "line" }, ...made.controls);
    if (column.missing) {
      const box = element("input", { type: "checkbox" });
      box.addEventListener("input", () => {
        for (const control of made.controls) control.disabled = box.checked;
        set(column.name, box.checked ? null : made.value());
      });
      line.append(element("label", { class: "check" }, box, " missing"));
    }
    cell.append(line);
    cell.addEventListener("focusin", () => { if (state.column !== column.name) choose(column.name); });
    form.append(cell);
    byId("column").append(element("option", { value: column.name }, column.name));
  });
}

// The values of the chosen column at which the row is predicted for the curve.
function gridOf(column) {
  if (column.kind === "category") return column.words.slice(0, 20);
  if (column.boolean) return [0, 1];
  const [start, end] = range(column);
  if (column.integer && end - start < GRID) return Array.from({ length: end - start + 1 }, (_, j) => start + j);
  const points = Array.from({ length: GRID }, (_, j) => start + ((end - start) * j) / (GRID - 1));
  if (column.kind === "date") return [...new Set(points.map(Math.round))].map(dateOf);
  return column.integer ? [...new Set(points.map(Math.round))] : points;
}

// The last change wins: while an answer is awaited, changes are remembered, and asked for once it is there.
async function update() {
  if (state.busy) {
    state.again = true;
    return;
  }
  state.busy = true;
  do {
    state.again = false;
    const column = spec(state.column), level = byId("level").value, grid = gridOf(column);
    const rows = [state.row, ...grid.map((value) => ({ ...state.row, [column.name]: column.kind === "number" ? written(column, value) : value }))];
    try {
      const [answer, average] = await Promise.all([
        call(`predict?level=${level}`, {
          method: "POST",
          headers: { "Content-Type": "application/json", Accept: "application/json" },
          body: JSON.stringify(rows),
        }).then((response) => response.json()),
        effect(column.name, level),
      ]);
      byId("row-error").textContent = "";
      const [here, ...points] = answer.predictions;
      if (state.card.task === "regression") showNumber(here, points, level);
      else showClasses(here);
      byId("flags").replaceChildren(...here.flags.map((flag) => element("li", {}, `Unlike the training data: ${flag}.`)));
      drawCurve(column, grid, here, points, average, level);
      document.body.dataset.shown = String(Number(document.body.dataset.shown || 0) + 1);
    } catch (error) {
      byId("row-error").textContent = error.message;
    }
  } while (state.again);
  state.busy = false;
}

async function effect(name, level) {
  if (!state.card.has_effects || spec(name).unit) return null; // cells of percentages are text, which have no grid
  const key = JSON.stringify([name, level]);
  if (!state.effects.has(key)) {
    const query = new URLSearchParams({ column: name, level });
    state.effects.set(key, call(`effect?${query}`).then((response) => response.json()).catch(() => null));
  }
  return state.effects.get(key);
}

function showNumber(here, points, level) {
  const percent = `${Math.round(level * 100)} %`;
  byId("prediction").replaceChildren(
    element("strong", {}, `${number(here.mean)}`),
    element("span", {}, `${percent} from ${number(here.lower)} to ${number(here.upper)}`),
    element("span", { class: "quiet" }, `± ${number(here.std)}: model ${number(here.epistemic)} (more rows like this would reduce it), noise ${number(here.aleatoric)}`),
  );
  const all = [here, ...points];
  const low = Math.min(...all.map((p) => p.lower)), high = Math.max(...all.map((p) => p.upper));
  const x = (value) => 20 + (520 * (value - low)) / (high - low || 1);
  const band = byId("band");
  band.setAttribute("aria-label", `${percent} interval from ${number(here.lower)} to ${number(here.upper)}, mean ${number(here.mean)}`);
  band.replaceChildren(
    element("line", { class: "axis", x1: 20, x2: 540, y1: 44, y2: 44 }),
    element("rect", { class: "interval", x: x(here.lower), width: Math.max(x(here.upper) - x(here.lower), 1), y: 12, height: 26 }),
    element("line", { class: "bar", x1: x(here.mean), x2: x(here.mean), y1: 9, y2: 41 }),
    element("text", { x: 20, y: 60 }, number(low)),
    element("text", { x: 540, y: 60, "text-anchor": "end" }, number(high)),
  );
}

function showClasses(here) {
  byId("band").setAttribute("hidden", "");
  byId("prediction").replaceChildren(
    element("strong", {}, String(here.class)),
    element("span", { class: "quiet" }, `entropy ${number(here.entropy)} nats, of which ${number(here.mutual_information)} because the model is uncertain`),
  );
  byId("classes").replaceChildren(...state.card.classes.map((name) => {
    const p = here[`p_${name}`];
    const bar = element("meter", { min: 0, max: 1, value: p, "aria-label": `probability of ${name}` });
    return element("div", { class: "class" }, element("span", {}, name), bar, element("span", { class: "number" }, `${(100 * p).toFixed(1)} %`));
  }));
}

function drawCurve(column, grid, here, points, average, level) {
  const chosen = state.card.task === "regression" ? null : byId("class").value;
  const k = state.card.classes.indexOf(chosen);
  const value = (p) => (chosen === null ? p.mean : p[`p_${chosen}`]);
  const ends = (p) => (chosen === null ? [p.lower, p.upper] : [value(p), value(p)]);
  const isWord = column.kind === "category" || column.boolean;
  const words = isWord ? grid.map(String) : [];
  const place = (cell) => (isWord ? words.indexOf(String(cell)) : column.kind === "date" ? days(cell) : unwritten(column, cell));
  const [start, end, low, high] = isWord ? [-0.5, grid.length - 0.5, -0.5, grid.length - 0.5] : range(column);
  const of = (values) => (k < 0 ? values : values.map((list) => list[k]));
  const mean = average ? { mean: of(average.mean), lower: of(average.lower), upper: of(average.upper) } : null;
  const heights = points.flatMap(ends).concat(ends(here), mean ? [...mean.lower, ...mean.upper] : []);
  const [bottom, top] = chosen === null ? [Math.min(...heights), Math.max(...heights)] : [0, 1];
  const x = (cell) => 64 + (480 * (place(cell) - start)) / (end - start || 1);
  const y = (height) => 258 - (240 * (height - bottom)) / (top - bottom || 1);
  const svg = byId("curve"), parts = [];
  const left = 64 + (480 * (low - start)) / (end - start || 1), right = 64 + (480 * (high - start)) / (end - start || 1);
  if (left > 64) parts.push(element("rect", { class: "beyond", x: 64, y: 18, width: left - 64, height: 240 }));
  if (right < 544) parts.push(element("rect", { class: "beyond", x: right, y: 18, width: 544 - right, height: 240 }));
  const path = (cells, values) => cells.map((cell, j) => `${j ? "L" : "M"}${x(cell).toFixed(1)} ${y(values[j]).toFixed(1)}`).join("");
  const area = (cells, lower, upper) => `${path(cells, upper)}${path([...cells].reverse(), [...lower].reverse()).replace("M", "L")}Z`;
  if (isWord) {
    points.forEach((p, j) => {
      const [from, to] = ends(p), at = x(grid[j]);
      parts.push(element("rect", { class: "interval", x: at - 9, width: 18, y: y(to), height: Math.max(y(from) - y(to), 1) }));
      parts.push(element("circle", { class: "dot", cx: at, cy: y(value(p)), r: 5 }));
    });
    if (mean) average.grid.forEach((cell, j) => {
      if (place(cell) < 0) return;
      const at = x(cell) + 16;
      parts.push(element("line", { class: "average", x1: at - 6, x2: at + 6, y1: y(mean.mean[j]), y2: y(mean.mean[j]) }));
      parts.push(element("rect", { class: "spread", x: at - 4, width: 8, y: y(mean.upper[j]), height: Math.max(y(mean.lower[j]) - y(mean.upper[j]), 1) }));
    });
  } else {
    if (mean) parts.push(element("path", { class: "spread", d: area(average.grid, mean.lower, mean.upper) }));
    parts.push(element("path", { class: "interval", d: area(grid, points.map((p) => ends(p)[0]), points.map((p) => ends(p)[1])) }));
    if (mean) parts.push(element("path", { class: "average", d: path(average.grid, mean.mean) }));
    parts.push(element("path", { class: "mean", d: path(grid, points.map(value)) }));
  }
  const cell = state.row[column.name];
  if (cell !== null && place(cell) >= start && place(cell) <= end) {
    const [from, to] = ends(here);
    parts.push(element("line", { class: "bar", x1: x(cell), x2: x(cell), y1: y(from), y2: y(to) }));
    parts.push(element("circle", { class: "dot", id: "here", cx: x(cell), cy: y(value(here)), r: 6 }));
  }
  parts.push(element("line", { class: "axis", x1: 64, x2: 544, y1: 258, y2: 258 }), element("line", { class: "axis", x1: 64, x2: 64, y1: 18, y2: 258 }));
  for (const height of [bottom, (bottom + top) / 2, top]) parts.push(element("text", { x: 58, y: y(height) + 4, "text-anchor": "end" }, number(height)));
  const label = (at) => (column.kind === "date" ? dateOf(at) : number(at));
  if (isWord) {
    const step = Math.ceil(grid.length / 6);
    grid.forEach((word, j) => { if (j % step === 0) parts.push(element("text", { x: x(word), y: 276, "text-anchor": "middle" }, String(word).slice(0, 12))); });
  } else for (const [at, anchor] of [[start, "start"], [(start + end) / 2, "middle"], [end, "end"]]) {
    parts.push(element("text", { x: 64 + (480 * (at - start)) / (end - start || 1), y: 276, "text-anchor": anchor }, label(at)));
  }
  parts.push(element("text", { x: 304, y: 295, "text-anchor": "middle" }, column.name.slice(0, 60)));
  svg.replaceChildren(...parts);
  const target = chosen === null ? state.card.target : `the probability of ${chosen}`;
  const percent = `${Math.round(level * 100)} %`;
  svg.setAttribute("aria-label", `${target} by ${column.name}: ${number(value(points[0]))} at ${grid[0]}, ${number(value(points.at(-1)))} at ${grid.at(-1)}`);
  byId("caption").textContent = `Blue: ${target} of this row if ${column.name} changes` +
    (chosen === null ? `, with its ${percent} interval.` : ".") +
    (mean ? ` Orange, dashed: the mean over held-out rows, with the ${percent} band of the model's uncertainty.` : "") +
    (isWord ? "" : " Gray: outside the training range.");
}

// The cells of CSV as the server writes it: quotes are doubled, and cells may contain line breaks.
function parseCsv(text, rows) {
  const table = [[]];
  let cell = "", quoted = false;
  for (let j = 0; j < text.length && table.length <= rows + 1; j += 1) {
    const c = text[j];
    if (quoted && c === '"' && text[j + 1] === '"') { cell += '"'; j += 1; }
    else if (c === '"') quoted = !quoted;
    else if (!quoted && c === ",") { table.at(-1).push(cell); cell = ""; }
    else if (!quoted && c === "\n") { table.at(-1).push(cell); cell = ""; table.push([]); }
    else cell += c;
  }
  return table.slice(0, rows + 1).filter((row) => row.length);
}

function errorBar(row, low, high) {
  const x = (value) => 4 + (136 * (value - low)) / (high - low || 1);
  return element("svg", { viewBox: "0 0 144 20", role: "img", "aria-label": `from ${row.lower} to ${row.upper}` },
    element("rect", { class: "interval", x: x(row.lower), width: Math.max(x(row.upper) - x(row.lower), 1), y: 4, height: 12 }),
    element("line", { class: "bar", x1: x(row.mean), x2: x(row.mean), y1: 2, y2: 18 }));
}

// Digits that nobody reads are left out of the preview, not of the file.
const short = (cell) => (/^-?\d+\.\d{5,}(e-?\d+)?$/.test(cell) ? String(Number(Number(cell).toPrecision(5))) : cell);

function showPreview(text) {
  const [header, ...rows] = parseCsv(text, SHOWN);
  const first = state.card.task === "regression" ? ["mean", "lower", "upper", "flags"] : ["class", "entropy", "flags"];
  const order = [...first, ...header.filter((name) => !first.includes(name))].map((name) => header.indexOf(name)).filter((j) => j >= 0);
  const records = rows.map((row) => Object.fromEntries(header.map((name, j) => [name, row[j]])));
  const bars = state.card.task === "regression";
  const ends = records.flatMap((row) => [Number(row.lower), Number(row.upper)]);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const head = element("tr", {}, ...(bars ? [element("th", { scope: "col" }, "interval")] : []), ...order.map((j) => element("th", { scope: "col" }, header[j])));
  const body = rows.map((row, i) => {
    const values = Object.fromEntries(["mean", "lower", "upper"].map((name) => [name, Number(records[i][name])]));
    return element("tr", {}, ...(bars ? [element("td", {}, errorBar(values, low, high))] : []), ...order.map((j) => element("td", {}, short(row[j]))));
  });
  byId("preview").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
  byId("preview").hidden = false;
}

async function predictFile(event) {
  event.preventDefault();
  const file = byId("file").files[0];
  if (!file) return;
  const isParquet = file.name.toLowerCase().endsWith(".parquet");
  const show = (id, text) => { byId(id).textContent = text; };
  show("table-error", "");
  show("table-status", "Predicting …");
  byId("table-notes").replaceChildren();
  byId("download").hidden = true;
  byId("preview").hidden = true;
  byId("send").disabled = true;
  try {
    if (file.size > state.card.limits.max_body) throw new Error(`The file has ${file.size} bytes, and at most ${state.card.limits.max_body} are accepted.`);
    const response = await call(`predict?keep_all=true&level=${byId("level").value}`, {
      method: "POST",
      headers: { "Content-Type": isParquet ? "application/vnd.apache.parquet" : "text/csv", Accept: "text/csv" },
      body: file,
    });
    const text = await response.text();
    let notes = [];
    try { notes = JSON.parse(response.headers.get("X-Credo-Notes") || "[]"); } catch { /* cut off */ }
    byId("table-notes").replaceChildren(...notes.map((note) => element("li", {}, note)));
    const link = byId("download");
    URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = `${file.name.replace(/\.[^.]*$/, "")}-predicted.csv`;
    link.textContent = `Download ${link.download}`;
    link.hidden = false;
    showPreview(text);
    show("table-status", `Done; the first ${SHOWN} rows are below.`);
  } catch (error) {
    show("table-status", "");
    show("table-error", error.message);
  }
  byId("send").disabled = false;
}

async function start() {
  try {
    state.card = await (await call("card")).json();
  } catch (error) {
    byId("access").hidden = false;
    byId("token-error").textContent = error.status === 401 && !state.token ? "" : error.message;
    return;
  }
  const card = state.card;
  byId("access").hidden = true;
  byId("title").textContent = `Predictions of ${card.target}`;
  document.title = `credo: ${card.target}`;
  const scores = card.scores.map((score) => `${score.label} ${number(score.value)}`).join(", ");
  const trained = card.trained_rows ? ` on ${card.trained_rows} rows` : "";
  byId("about").textContent = `${card.source ? `${card.source}: ` : ""}method ${card.method}, trained${trained}; model ${card.version}.` + (scores ? ` Held-out rows: ${scores}.` : "");
  byId("class").replaceChildren(...card.classes.map((name) => element("option", { value: name }, name)));
  for (const id of ["class", "class-label"]) byId(id).hidden = card.task === "regression";
  makeForm();
  byId("row").hidden = false;
  byId("table").hidden = false;
  choose(card.columns[0].name);
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = byId("token").value.trim();
  start();
});
byId("column").addEventListener("input", () => choose(byId("column").value));
byId("level").addEventListener("input", update);
byId("class").addEventListener("input", update);
byId("upload").addEventListener("submit", predictFile);
start();
