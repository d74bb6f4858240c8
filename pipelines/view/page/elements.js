// Elements and texts. What a dataset holds is put into text nodes alone, never parsed.
"use strict";

// Makes an element. `on...` are listeners, `style` an object, others are attributes.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [key, text] of Object.entries(value)) made.style.setProperty(key, text);
    } else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en-US");
}

function plural(number, thing) {
  return `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
}

// As the command prints sizes: 2621440 is 2.5 MiB. Sizes that are a step apart, a tenth
// of a unit or more, have different texts.
function sizeText(bytes, step = Infinity) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && step >= 102.4 && unit < units.length - 1) {
    bytes /= 1024;
    step /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : 1;
  const number = bytes.toLocaleString("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
  return `${number} ${unit === 0 && bytes === 1 ? "byte" : units[unit]}`;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return element("span", {}, "–");
  return element("span", { class: "number", title: `${count(bytes)} bytes` }, sizeText(bytes));
}

function percent(share) {
  const digits = share !== 0 && Math.abs(share) < 0.1 ? 2 : 1;
  return `${(100 * share).toFixed(digits)} %`;
}

// A text of the dataset in a line: what it holds of directions stays inside.
function aside(text, kind = "") {
  return element("bdi", { class: kind }, shownText(text));
}

function pathText(path) {
  return aside(path, "path");
}

// Control characters would be invisible, or worse: shows their pictures.
function shownText(text) {
  return String(text)
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, (c) =>
      String.fromCharCode(0x2400 + c.charCodeAt(0)),
    )
    .replaceAll("\u007f", "\u2421");
}

function link(hash, ...children) {
  return element("a", { href: hash }, ...children);
}

function button(text, act, attributes = {}) {
  return element("button", { type: "button", onclick: act, ...attributes }, text);
}

function section(title, ...children) {
  return element("section", {}, element("h2", {}, title), ...children);
}

// Columns are [title, kind]: kind is "number", "wide" or nothing.
function table(columns, rows, { label, rowOf } = {}) {
  const head = columns.map(([title, kind]) =>
    element("th", { scope: "col", class: kind || null }, title),
  );
  const body = rows.map((cells, index) => {
    const attributes = rowOf ? rowOf(index) : {};
    return element(
      "tr",
      attributes,
      cells.map((cell, column) => element("td", { class: columns[column][1] || null }, cell)),
    );
  });
  const fits = columns.every(([, kind]) => !["wide", "preview", "meter"].includes(kind));
  return element(
    "div",
    { class: fits ? "scroll fits" : "scroll", tabindex: 0, role: "region", "aria-label": label },
    element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)),
  );
}

// Pairs of a name and a value; those without a value are left out.
function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined);
  return element(
    "dl",
    { class: "facts" },
    known.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
  );
}

function tile(name, value, note) {
  return element(
    "div",
    { class: "tile" },
    element("span", { class: "name" }, name),
    element("span", { class: "value" }, value),
    note ? element("span", { class: "note" }, note) : null,
  );
}

// A range of a whole, as a bar: where in a file a record is.
function rangeBar(begin, end, whole, label) {
  const left = whole > 0 ? Math.min(100, (100 * begin) / whole) : 0;
  const width = whole > 0 ? Math.min(100 - left, (100 * (end - begin)) / whole) : 0;
  return element(
    "div",
    { class: "range", role: "img", "aria-label": label },
    element("span", { style: { left: `min(${left}%, 100% - 3px)`, width: `max(3px, ${width}%)` } }),
  );
}

function errorPanel(error) {
  const known =
    error instanceof AnswerError
      ? error.facts
      : { what: "This page has a mistake", got: String(error) };
  if (!(error instanceof AnswerError)) console.error(error);
  return element(
    "div",
    { class: "panel bad", role: "alert" },
    element("p", { class: "what" }, shownText(known.what)),
    facts(
      [
        ["where", known.where],
        ["expected", known.expected],
        ["got", known.got],
        ["to do", known.cure],
      ].map(([name, value]) => [name, value ? aside(value) : null]),
    ),
  );
}

function emptyPanel(...children) {
  return element("div", { class: "panel" }, element("p", { class: "quiet" }, ...children));
}

// What screen readers say when something changes that was not focused.
function say(text) {
  document.getElementById("said").textContent = text;
}

// Puts what an answer gives into a place: until then, it is marked as busy. Returns
// whether the place shows it, and neither an error nor what was asked for later.
async function fill(place, answer, build) {
  const turn = (place.turn || 0) + 1;
  place.turn = turn;
  place.setAttribute("aria-busy", "true");
  let children,
    good = true;
  try {
    children = build(await answer);
  } catch (error) {
    children = [errorPanel(error)];
    good = false;
  }
  if (place.turn !== turn) return false; // Something else was asked for meanwhile.
  dropCharts(place);
  place.replaceChildren(...[children].flat().filter(Boolean));
  place.removeAttribute("aria-busy");
  return good;
}
