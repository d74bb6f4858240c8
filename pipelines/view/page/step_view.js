// One step of training: its rows, the records in them, and where these are stored.
"use strict";

const ROWS_A_PAGE = 256;
let hosts = 0; // Among which the rows are dealt; 0 to say nothing of them.

const stepView = {
  title: "Steps",
  enter(root) {
    const controls = element("div", { class: "controls steps" });
    const body = element("div", { class: "view" });
    root.append(controls, body);
    let made = null;
    return async ({ parts, query }) => {
      const o = await overview();
      if (!o.order) {
        controls.replaceChildren(element("h1", {}, "Steps"));
        body.replaceChildren(emptyPanel(noOrder()));
        return;
      }
      made ||= stepControls(controls, o);
      const first = embedded ? numbersHere("step")[0] || 0 : o.order.state_step || 0;
      const step = parts[0] === undefined ? first : wholeNumber(parts[0]);
      if (query.has("hosts")) hosts = wholeNumber(query.get("hosts"));
      made(step);
      const row = query.has("row") ? wholeNumber(query.get("row")) : null;
      const page =
        Math.floor((row === null ? wholeNumber(query.get("from") || 0) : row) / ROWS_A_PAGE) *
        ROWS_A_PAGE;
      const asked = { step, first_row: page || null, hosts: embedded ? null : hosts || null };
      // What the rows begin with takes reads of many shards: it comes later.
      const drawn = await fill(body, ask("step", asked), (s) => stepParts(o, s, row));
      if (!drawn) return;
      say(`Step ${count(step)}`);
      body.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
      if (!embedded) showPreviews(body, step, asked);
    };
  },
};

// The slider spans the run; of one without an end, the epoch that the step is in.
function stepControls(place, o) {
  const { order } = o;
  const here = embedded ? numbersHere("step") : null;
  const span = order.steps || Math.max(1, order.epoch_steps);
  const slider = element("input", { type: "range", "aria-label": "Step", step: 1 });
  const number = element("input", {
    type: "number",
    min: 0,
    max: order.steps ? order.steps - 1 : null,
    inputmode: "numeric",
    "aria-label": "Number of the step",
    "data-key": "go",
  });
  const dealt = element("input", {
    type: "number",
    min: 1,
    inputmode: "numeric",
    onchange: () => {
      location.hash = `#/step/${stepAt()}?hosts=${wholeNumber(dealt.value)}`;
    },
  });
  const moves = element("span", { class: "pushed" });
  const range = element("span", { class: "soft" });
  let timer = null,
    base = 0;
  const stepAt = () => (here ? here[Number(slider.value)] : base + Number(slider.value));
  const label = () => {
    number.value = stepAt();
    slider.setAttribute("aria-valuetext", `step ${count(stepAt())}`);
  };
  // While it is dragged, the address changes without a new entry of the history.
  slider.addEventListener("input", () => {
    label();
    clearTimeout(timer);
    timer = setTimeout(() => replaceHash(`#/step/${stepAt()}`), 60);
  });
  slider.addEventListener("change", () => {
    clearTimeout(timer);
    if (location.hash !== `#/step/${stepAt()}`) location.hash = `#/step/${stepAt()}`;
  });
  place.replaceChildren(
    element("h1", {}, "Step"),
    element(
      "form",
      {
        class: "go",
        onsubmit: (event) => {
          event.preventDefault();
          if (number.value !== "" && number.checkValidity())
            location.hash = `#/step/${number.value}`;
          else number.reportValidity();
        },
      },
      number,
      range,
      button("Go", null, { type: "submit", class: "phone-off" }),
    ),
    embedded ? "" : element("label", { class: "hosts" }, "Hosts ", dealt),
    moves,
    element(
      "div",
      { class: "slider" },
      slider,
      order.state_step === null || order.state_step === undefined
        ? null
        : element(
            "p",
            { class: "quiet" },
            "The state of the feed is at ",
            link(`#/step/${order.state_step}`, `step ${count(order.state_step)}`),
            ".",
          ),
    ),
  );
  return (step) => {
    base = here || order.steps ? 0 : Math.floor(step / span) * span;
    slider.min = 0;
    slider.max = (here ? here.length : span) - 1;
    slider.value = here
      ? Math.max(
          0,
          here.findLastIndex((each) => each <= step),
        )
      : step - base;
    if (document.activeElement !== number) number.value = step;
    dealt.value = hosts || "";
    slider.setAttribute("aria-valuetext", `step ${count(step)}`);
    range.textContent = here
      ? `one of ${count(here.length)} steps in this file`
      : order.steps
        ? `of 0 to ${count(order.steps - 1)}`
        : `of ${count(base)} to ${count(base + span - 1)}, and on`;
    const before = here ? (here.findLast((each) => each < step) ?? -1) : step - 1;
    const after = here ? (here.find((each) => each > step) ?? -1) : step + 1;
    keepFocus(moves, [
      stepLink("previous", before >= 0 ? `#/step/${before}` : null),
      stepLink(
        "next",
        after >= 0 && (!order.steps || after < order.steps) ? `#/step/${after}` : null,
      ),
    ]);
  };
}

function stepParts(o, s, chosen) {
  const names = o.datasets.map(({ name }) => name);
  const many = names.length > 1;
  const dealt = s.rows.some(({ host }) => known(host));
  const columns = [
    ["Row", "number"],
    dealt ? ["Host", "number"] : null,
    many ? ["Dataset", ""] : null,
    many ? ["Epoch", "number"] : null,
    [o.kind === "packed" ? "Packed row" : "Record", "number"],
    ["Shard", "number"],
    ["Size", "number"],
    ["Begins with", "preview"],
  ].filter(Boolean);
  const pages = Math.ceil(s.num_rows / ROWS_A_PAGE);
  const page = Math.floor(s.first_row / ROWS_A_PAGE);
  const shards = new Set(s.rows.map((each) => JSON.stringify([each.of, each.shard]))).size;
  const epochs = s.rows.map(({ epoch }) => epoch);
  const first = Math.min(...epochs),
    last = Math.max(...epochs);
  return [
    facts([
      ["epoch", first === last ? count(first) : `${count(first)} to ${count(last)}`],
      [
        "rows",
        pages > 1 ? count(s.num_rows) : `${count(s.num_rows)} from ${plural(shards, "shard")}`,
      ],
      [
        "datasets",
        many
          ? element(
              "span",
              {},
              names.map((name, index) =>
                element(
                  "span",
                  { class: "share" },
                  swatch(index),
                  aside(name),
                  ` ${count(s.rows.filter((each) => each.of === name).length)}`,
                ),
              ),
            )
          : null,
      ],
    ]),
    section(
      "Where its records are stored",
      ...o.datasets.map((each, index) => recordStrip(s, each, index, many)),
    ),
    section(
      "Rows",
      table(
        columns,
        s.rows.map((each) =>
          [
            link(`#/step/${s.step}?row=${each.row}`, count(each.row)),
            dealt ? count(each.host) : null,
            many ? element("span", {}, swatch(names.indexOf(each.of)), aside(each.of)) : null,
            many ? count(each.epoch) : null,
            link(
              numberHash("record", each.of, each.record, `?step=${s.step}&row=${each.row}`),
              count(each.record),
            ),
            link(numberHash("shard", each.of, each.shard), count(each.shard)),
            sizeCell(each),
            previewCell(each),
          ].filter((cell) => cell !== null),
        ),
        {
          label: `Rows of step ${s.step}`,
          rowOf: (index) => ({ "aria-current": s.rows[index].row === chosen ? "true" : null }),
        },
      ),
      pages > 1
        ? element(
            "p",
            { class: "pages" },
            page > 0
              ? link(`#/step/${s.step}?from=${(page - 1) * ROWS_A_PAGE}`, "← Earlier rows")
              : null,
            element(
              "span",
              {},
              `Rows ${count(s.first_row)} to ${count(s.first_row + s.rows.length - 1)} of ${count(s.num_rows)}`,
            ),
            page < pages - 1
              ? link(`#/step/${s.step}?from=${(page + 1) * ROWS_A_PAGE}`, "Later rows →")
              : null,
          )
        : null,
    ),
  ];
}

function sizeCell(row) {
  if (known(row.size_bytes)) return size(row.size_bytes);
  return element("span", { class: "quiet" }, embedded ? "–" : "…");
}

function previewCell(row) {
  return known(row.preview) ? aside(row.preview) : "";
}

// Puts what the rows begin with into their cells, if they are still shown.
function showPreviews(body, step, asked) {
  const turn = body.turn;
  const rows = body.querySelectorAll("section:last-of-type tbody tr");
  ask("step", { ...asked, previews: 1 }).then(
    (s) => {
      if (body.turn !== turn) return;
      s.rows.forEach((row, index) => {
        rows[index].cells[rows[index].cells.length - 2].replaceChildren(sizeCell(row));
        rows[index].cells[rows[index].cells.length - 1].replaceChildren(previewCell(row));
      });
      body.dataset.previews = step;
    },
    (error) => {
      if (body.turn === turn) body.append(errorPanel(error));
    },
  );
}

// A strip of all records, with a line for each row of the step.
function recordStrip(s, own, index, many) {
  const rows = s.rows.filter((each) => each.of === own.name);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const set = (node, attributes) => {
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  set(svg, {
    viewBox: "0 0 1000 24",
    preserveAspectRatio: "none",
    role: "img",
    class: `strip series-${many ? index % SERIES : 0}`,
    "aria-label": `${plural(rows.length, "row")} over ${plural(own.records, "record")}`,
  });
  for (const each of rows) {
    const x = (1000 * (each.record + 0.5)) / own.records;
    svg.append(
      set(document.createElementNS("http://www.w3.org/2000/svg", "line"), {
        x1: x,
        x2: x,
        y1: 0,
        y2: 24,
      }),
    );
  }
  return element(
    "div",
    { class: "strips" },
    many ? element("span", {}, aside(own.name)) : null,
    svg,
    element(
      "span",
      { class: "ends quiet" },
      element("span", {}, "first record"),
      element("span", {}, `record ${count(own.records - 1)}`),
    ),
  );
}
