// The views of the page, and the address that says which is shown.
"use strict";

const content = JSON.parse(document.getElementById("content").textContent);
const VIEWS = { dataset: datasetView, record: recordView, step: stepView };
const TITLES = { dataset: "Dataset", record: "Records", step: "Steps" };

// "#/record/17", or "#/record/web/17" in a mixture.
function address(view, ...parts) {
  return ["#", view, ...parts.filter((part) => part !== "").map(encodeURIComponent)].join("/");
}

function datasetOf(name) {
  return content.datasets.find((each) => each.name === name) || content.datasets[0];
}

// The numbers that this file holds, in order.
function heldNumbers(held) {
  return Object.keys(held)
    .map(Number)
    .sort((a, b) => a - b);
}

function tile([name, value, note]) {
  return element(
    "div",
    { class: "tile" },
    element("span", { class: "name" }, name),
    element("span", { class: "value" }, value),
    note ? element("span", { class: "note" }, note) : null,
  );
}

function titleOf(dataset) {
  return element(
    "h1",
    {},
    aside(dataset.title),
    dataset.split ? element("span", { class: "soft" }, " / ", aside(dataset.split)) : null,
  );
}

function datasetView([name]) {
  const dataset = datasetOf(name);
  const mixture = content.datasets.map((each) => [
    link(address("dataset", each.name), aside(each.name)),
    each.records,
    each.path,
  ]);
  return [
    element("div", {}, titleOf(dataset), quiet(aside(dataset.path))),
    mixture.length > 1
      ? table([["Dataset"], ["Records", true], ["Path"]], mixture, "Datasets of the mixture")
      : null,
    element("div", { class: "tiles" }, dataset.tiles.map(tile)),
    ...dataset.sections.map(sectionPart),
  ];
}

function sectionPart(part) {
  if (part.facts) return section(part.title, facts(part.facts));
  if (part.chart) return section(part.title, chart(part.chart));
  return section(
    part.title,
    table(part.columns, part.rows, part.title),
    part.more ? quiet(part.more) : null,
  );
}

function recordView(parts) {
  const dataset = datasetOf(parts.length > 1 ? parts[0] : "");
  const held = content.records[dataset.name];
  const numbers = heldNumbers(held);
  const given =
    parts.length > 0 && parts[parts.length - 1] !== "" ? parts[parts.length - 1] : numbers[0];
  const number = Number(given ?? 0);
  const record = held[number];
  const thing = dataset.thing;
  const go = (chosen) => address("record", dataset.name, chosen);
  const controls = numberControls(thing, number, dataset.records, numbers, go);
  if (content.datasets.length > 1) {
    controls.prepend(
      element(
        "select",
        {
          "aria-label": "Dataset",
          onchange: ({ target }) => {
            const first = heldNumbers(content.records[target.value])[0] ?? 0;
            location.hash = address("record", target.value, first);
          },
        },
        content.datasets.map(({ name }) =>
          element("option", { value: name, selected: name === dataset.name }, shownText(name)),
        ),
      ),
    );
  }
  if (!record) {
    const option = `--records ${dataset.name ? `${dataset.name}=` : ""}${number}`;
    return [controls, missing(thing, number, dataset.records, option)];
  }
  return [
    controls,
    element(
      "div",
      { class: "split" },
      element("div", { class: "content" }, recordParts(record)),
      element(
        "aside",
        { class: "place", "aria-label": "Place of the record" },
        record.place ? facts([...record.place, ["size", plural(record.bytes, "byte")]]) : null,
      ),
    ),
  ];
}

function stepView([given]) {
  const numbers = heldNumbers(content.steps);
  const step = Number(given ?? numbers[0] ?? 0);
  const controls = numberControls("step", step, null, numbers, (chosen) => address("step", chosen));
  const order = quiet("In the order of ", shownText(content.order));
  const held = content.steps[step];
  if (!held) return [controls, order, missing("step", step, null, `--steps ${step}`)];
  const many = content.datasets.length > 1;
  const rows = held.rows.map((row, number) => [
    number,
    ...(many ? [row.of] : []),
    row.epoch,
    row.other ? count(row.record) : link(address("record", row.of, row.record), count(row.record)),
    row.bytes ?? "",
    row.other ?? row.preview,
    row.source,
  ]);
  const columns = [
    ["Row", true],
    ...(many ? [["Dataset"]] : []),
    ["Epoch", true],
    ["Record", true],
    ["Bytes", true],
    ["Begins with"],
    ["Source"],
  ];
  const more = held.count - held.rows.length;
  return [
    controls,
    order,
    table(columns, rows, `Rows of step ${step}`),
    more > 0 ? quiet(`And ${plural(more, "row")} more: --steps ${step} shows them.`) : null,
  ];
}

// Goes to a number, or to the next one that this file holds.
function numberControls(thing, number, limit, numbers, hash) {
  const input = element("input", {
    type: "number",
    min: 0,
    max: limit === null ? null : limit - 1,
    value: number,
    "aria-label": `Number of the ${thing}`,
  });
  const move = (key, text, to) =>
    to === undefined
      ? element("span", { class: "button off", "aria-disabled": "true" }, text)
      : element("a", { class: "button", href: hash(to), "data-key": key }, text);
  return element(
    "form",
    {
      class: "controls",
      onsubmit: (event) => {
        event.preventDefault();
        if (input.value !== "") location.hash = hash(input.value);
      },
    },
    element("h1", {}, { row: "Row", record: "Record", step: "Step" }[thing]),
    input,
    element("button", {}, "Go"),
    element(
      "span",
      { class: "soft" },
      limit === null
        ? `${plural(numbers.length, thing)} in this file`
        : `${count(numbers.length)} of ${plural(limit, thing)} in this file`,
    ),
    element(
      "span",
      { class: "pushed" },
      move(
        "ArrowLeft",
        "← Previous",
        numbers.findLast((each) => each < number),
      ),
      move(
        "ArrowRight",
        "Next →",
        numbers.find((each) => each > number),
      ),
    ),
  );
}

function missing(thing, number, limit, option) {
  if (limit !== null && !(number < limit)) return panel(`There is no such ${thing}`);
  return panel(
    `This ${thing} is not in the file, which holds a part of the dataset`,
    quiet("This writes a file that has it:"),
    element("pre", { class: "scroll" }, shownText(`${content.command} ${option}`)),
  );
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function go() {
  const [view, ...parts] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const chosen = Object.hasOwn(VIEWS, view) && document.querySelector(`[data-view="${view}"]`);
  const shown = chosen ? view : "dataset";
  for (const each of document.querySelectorAll("#views a")) {
    if (each.dataset.view === shown) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  const main = document.getElementById("main");
  main.replaceChildren(...VIEWS[shown](parts).filter(Boolean));
  main.dataset.shown = location.hash;
  document.title = [TITLES[shown], ...parts, content.datasets[0].title].join(" · ");
}

document.getElementById("views").append(
  ...Object.keys(VIEWS)
    .filter((view) => view !== "step" || content.order !== null)
    .map((view) => element("a", { href: address(view), "data-view": view }, TITLES[view])),
);
document
  .getElementById("which")
  .append(content.datasets.map((each) => shownText(each.name || each.title)).join(" + "));
document.getElementById("foot").append(element("code", {}, shownText(content.command)));
addEventListener("hashchange", go);
addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, .scroll")) return;
  document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`)?.click();
});
go();
