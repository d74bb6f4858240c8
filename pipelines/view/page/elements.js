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
  return number.toLocaleString("en-US");
}

function plural(number, thing) {
  return `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
}

// Control characters would be invisible, or worse: shows their pictures.
function shownText(text) {
  return String(text)
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, (c) =>
      String.fromCharCode(0x2400 + c.charCodeAt(0)),
    )
    .replaceAll("\u007f", "\u2421");
}

// A text of the dataset in a line: what it holds of directions stays inside.
function aside(text) {
  return element("bdi", {}, shownText(text));
}

function quiet(...children) {
  return element("p", { class: "quiet" }, ...children);
}

function link(hash, ...children) {
  return element("a", { href: hash }, ...children);
}

function section(title, ...children) {
  return element("section", {}, title ? element("h2", {}, title) : null, ...children);
}

// Pairs of a name and a text; a name that is empty goes on with the one before.
function facts(pairs) {
  return element(
    "dl",
    { class: "facts" },
    pairs.flatMap(([name, text]) => [
      element("dt", {}, shownText(name)),
      element("dd", {}, aside(text)),
    ]),
  );
}

// Columns are [title, whether they are numbers]. Cells are texts, numbers or elements.
function table(columns, rows, label) {
  const kind = (column) => (columns[column][1] ? "number" : null);
  const shown = (cell) =>
    cell instanceof Node ? cell : typeof cell === "number" ? count(cell) : aside(cell ?? "");
  return element(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    element(
      "table",
      {},
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          columns.map(([title], at) => element("th", { scope: "col", class: kind(at) }, title)),
        ),
      ),
      element(
        "tbody",
        {},
        rows.map((cells) =>
          element(
            "tr",
            {},
            cells.map((cell, at) => element("td", { class: kind(at) }, shown(cell))),
          ),
        ),
      ),
    ),
  );
}

function folded(title, ...children) {
  return element("details", {}, element("summary", {}, title), ...children);
}

function panel(title, ...children) {
  return element(
    "div",
    { class: "panel", role: "alert" },
    element("p", { class: "what" }, title),
    ...children,
  );
}

const WIDTH = 1000;
const HEIGHT = 160;

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Bars as [low, high, text] from left to right; the numbers are also there as a table.
function chart({ title, summary, top, bars, ticks }) {
  const most = Math.max(1, ...bars.map(([count]) => count));
  const each = WIDTH / bars.length;
  const gap = bars.length > 60 ? 0 : each / (bars.length > 12 ? 16 : 5);
  const svg = drawn("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    class: "bars",
    "aria-label": `${title}. ${summary}`,
  });
  bars.forEach(([count, text], index) => {
    const height = Math.max((HEIGHT * count) / most, count > 0 ? 1 : 0);
    const x = index * each;
    const told = drawn("title", {}, shownText(text));
    svg.append(
      drawn(
        "g",
        {},
        told,
        drawn("rect", { x, y: 0, width: each, height: HEIGHT, class: "back" }),
        drawn("rect", { x: x + gap, y: HEIGHT - height, width: each - 2 * gap, height }),
      ),
    );
  });
  return element(
    "figure",
    {},
    element("figcaption", {}, element("h3", {}, title), quiet(summary)),
    element("p", { class: "quiet top-value" }, top),
    svg,
    element(
      "p",
      { class: "ticks quiet" },
      ticks.map(([, text]) => element("span", {}, text)),
    ),
    folded(
      "Show as text",
      element("pre", { class: "scroll" }, bars.map(([, text]) => text).join("\n")),
    ),
  );
}
