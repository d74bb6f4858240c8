// One record: what it holds, where it is stored, where it came from, when it is seen.
"use strict";

const SIGHTINGS_SHOWN = 100;
const EPOCHS_SOUGHT = 1000; // As many as are searched at once.

const recordView = {
  title: "Records",
  enter(root) {
    const controls = element("div", { class: "controls" });
    const trail = element("nav", { class: "trail", "aria-label": "How you came here" });
    const content = element("div", { class: "content" });
    const place = element("aside", { class: "place", "aria-label": "Place of the record" });
    root.append(controls, trail, element("div", { class: "split" }, content, place));
    let shownOf = null;
    return async ({ parts, query }) => {
      const first = await overview();
      const [of, given] = numbered(parts);
      const o = of === first.of ? first : await overview(of || first.of);
      const here = embedded ? numbersHere("record", o.of) : null;
      const record = parts.length === 0 && here ? here[0] || 0 : given;
      if (shownOf !== o.of) controls.replaceChildren(...recordControls(o));
      shownOf = o.of;
      if (o.records === 0) {
        content.replaceChildren(emptyPanel("There is no record: the split is empty."));
        return;
      }
      moveControls(controls, o, record, here);
      showTrail(trail, query, record);
      const answer = ask("record", { record, of: o.of });
      const source = ask("source", { record, of: o.of });
      source.catch(() => {}); // Where it is shown, it says what is wrong.
      // What is wrong with the record is said where its content would be.
      const there = answer.catch(() => null);
      fill(place, there, (r) => (r ? placeParts(o, r, source) : []));
      const drawn = await fill(content, answer, (r) => [
        ...(r.segments ? segmentParts(r) : []),
        ...packedFields(r),
      ]);
      if (!drawn) return;
      say(`Record ${count(record)}`);
      source.then(
        ({ pieces }) => {
          if (pieces) fillLegend(content, pieces);
        },
        () => {},
      );
    };
  },
};

// The features of a packed row are what the tokens show already.
function packedFields(r) {
  if (!r.segments) return fieldParts(r);
  if (r.fields.length === 0) return [];
  return [
    element(
      "details",
      {},
      element("summary", {}, `Features of the row (${count(r.fields.length)})`),
      element("div", { class: "stack" }, fieldParts(r)),
    ),
  ];
}

function recordControls(o) {
  const number = element("input", {
    type: "number",
    id: "number",
    min: 0,
    max: o.records - 1,
    inputmode: "numeric",
    "aria-label": `Number of the ${thingOf(o)}`,
    "data-key": "go",
  });
  return [
    element("h1", {}, thingOf(o) === "row" ? "Row" : "Record"),
    o.datasets.length > 1
      ? element(
          "select",
          {
            "aria-label": "Dataset",
            onchange: (event) => {
              location.hash = numberHash("record", event.target.value, 0);
            },
          },
          o.datasets.map((each) =>
            element(
              "option",
              { value: each.name, selected: each.name === o.of },
              shownText(each.name),
            ),
          ),
        )
      : null,
    element(
      "form",
      {
        class: "go",
        onsubmit: (event) => {
          event.preventDefault();
          if (number.value !== "") location.hash = numberHash("record", o.of, number.value);
        },
      },
      number,
      element("span", { class: "soft" }, o.records > 0 ? `of 0 to ${count(o.records - 1)}` : ""),
      button("Go", null, { type: "submit", class: "phone-off" }),
    ),
    element("span", { class: "pushed", "data-moves": "" }),
  ].filter(Boolean);
}

function moveControls(controls, o, record, here) {
  const number = controls.querySelector("#number");
  number.value = record;
  const moves = controls.querySelector("[data-moves]");
  // In a file, to the next of those that it holds.
  const before = here
    ? (here.findLast((each) => each < record) ?? -1)
    : Math.min(record, o.records) - 1;
  const after = here ? (here.find((each) => each > record) ?? o.records) : record + 1;
  keepFocus(moves, [
    stepLink("previous", before >= 0 ? numberHash("record", o.of, before) : null),
    stepLink("next", after < o.records ? numberHash("record", o.of, after) : null),
    button(
      "Random",
      () => {
        location.hash = numberHash(
          "record",
          o.of,
          here
            ? here[Math.floor(Math.random() * here.length)]
            : Math.floor(Math.random() * o.records),
        );
      },
      { "data-key": "random" },
    ),
  ]);
}

// Replaces links, and keeps the focus on the one that does the same.
function keepFocus(place, children) {
  const key = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(...children.filter(Boolean));
  if (key) place.querySelector(`[data-key="${key}"]`)?.focus();
}

function showTrail(trail, query, record) {
  const step = query.get("step"),
    row = query.get("row");
  trail.replaceChildren(
    ...(step === null
      ? []
      : [
          link(`#/step/${wholeNumber(step)}`, `Step ${count(wholeNumber(step))}`),
          " › ",
          link(
            `#/step/${wholeNumber(step)}?row=${wholeNumber(row)}`,
            `row ${count(wholeNumber(row))}`,
          ),
          ` › record ${count(record)}`,
        ]),
  );
}

function placeParts(o, r, source) {
  const thing = thingOf(o);
  const from = element("div", { class: "later" });
  fill(from, source, (answer) => sourceParts(o, r, answer));
  const chunk = known(r.end_bytes)
    ? element(
        "span",
        {},
        `bytes ${count(r.offset_bytes)} to ${count(r.end_bytes)}`,
        element(
          "div",
          { class: "quiet" },
          [
            sizeText(r.end_bytes - r.offset_bytes),
            known(r.chunk_records) ? plural(r.chunk_records, thing) : null,
          ]
            .filter(Boolean)
            .join(", "),
        ),
        known(r.file_bytes)
          ? rangeBar(
              r.offset_bytes,
              r.end_bytes,
              r.file_bytes,
              `Place in the shard of ${sizeText(r.file_bytes)}`,
            )
          : null,
      )
    : known(r.offset_bytes)
      ? `at byte ${count(r.offset_bytes)}`
      : null;
  return [
    section(
      "Where it is stored",
      facts([
        [
          "shard",
          element(
            "span",
            {},
            link(numberHash("shard", r.of, r.shard), `shard ${count(r.shard)}`),
            element("div", { class: "quiet" }, pathText(r.file)),
          ),
        ],
        ["place", `${thing} ${count(r.position)} of the shard`],
        ["chunk", chunk],
        ["size", size(r.size_bytes)],
      ]),
    ),
    section("Where it came from", from),
    seenPart(o, r),
  ];
}

function sourceParts(o, r, { source, pieces }) {
  if (pieces && pieces.length) {
    const files = new Map();
    for (const each of pieces) if (each.path) files.set(each.path, (files.get(each.path) || 0) + 1);
    if (files.size === 0)
      return [element("p", { class: "quiet" }, "Not known: the dataset keeps no sources.")];
    return [
      element(
        "ul",
        { class: "seen" },
        [...files].map(([path, number]) =>
          element(
            "li",
            {},
            pathText(path),
            element("div", { class: "quiet" }, plural(number, "piece")),
          ),
        ),
      ),
    ];
  }
  if (!source || (!source.path && !(source.passed || []).length)) {
    return [
      element(
        "p",
        { class: "quiet" },
        source && source.note ? shownText(source.note) : "Not known: the dataset keeps no sources.",
      ),
    ];
  }
  const place = placeOf(source);
  return [
    facts([
      [
        "through",
        source.passed && source.passed.length
          ? element(
              "span",
              {},
              source.passed.map((each) =>
                element("div", {}, pathText(each.path), `, record ${count(each.record)}`),
              ),
            )
          : null,
      ],
      [
        "file",
        source.path
          ? element(
              "span",
              {},
              pathText(source.path),
              element(
                "div",
                { class: "quiet" },
                [
                  source.format,
                  source.compression && source.compression !== "none" ? source.compression : null,
                ]
                  .filter(Boolean)
                  .map(shownText)
                  .join(", "),
              ),
            )
          : null,
      ],
      [
        "place",
        place
          ? element(
              "span",
              { class: "source-place" },
              place,
              known(source.offset_bytes) &&
                known(source.file_bytes) &&
                source.compression === "none"
                ? rangeBar(
                    source.offset_bytes,
                    source.offset_bytes,
                    source.file_bytes,
                    `Place in the file of ${sizeText(source.file_bytes)}`,
                  )
                : null,
            )
          : null,
      ],
      ["note", source.note ? aside(source.note) : null],
    ]),
    source.note && !embedded ? readSource(r) : null,
  ];
}

// Reading the source can take long: only where it was asked for.
function readSource(r) {
  const place = element("div", { class: "later" });
  place.append(
    button("Look in the source file", () => {
      fill(place, ask("source", { record: r.record, of: r.of, read: 1 }), ({ source }) => [
        element("pre", { class: "lines" }, shownText((source.text || []).join("\n"))),
      ]);
    }),
  );
  return place;
}

// Where is this record seen? In the first epoch, and in later ones on demand.
function seenPart(o, r) {
  const title = "Where it is seen in training";
  if (!o.order) return section(title, element("p", { class: "quiet" }, noOrder()));
  const place = element("div", { class: "later" });
  const load = (stop) =>
    fill(
      place,
      ask("seen", { record: r.record, of: r.of, first_epoch: stop ? 0 : null, stop_epoch: stop }),
      (seen) => {
        const shown = seen.sightings.slice(0, SIGHTINGS_SHOWN);
        const more = seen.sightings.length - shown.length;
        return [
          shown.length
            ? element(
                "ul",
                { class: "seen" },
                shown.map((each) =>
                  element(
                    "li",
                    {},
                    link(
                      `#/step/${each.step}?row=${each.row}`,
                      `step ${count(each.step)}, row ${count(each.row)}`,
                    ),
                    element("span", { class: "quiet" }, ` epoch ${count(each.epoch)}`),
                  ),
                ),
              )
            : element(
                "p",
                { class: "quiet" },
                `Not in ${seen.stop_epoch - seen.first_epoch === 1 ? "the first epoch" : `the first ${count(seen.stop_epoch)} epochs`}: the run ends before it, or it is in a remainder that is dropped.`,
              ),
          more > 0 ? element("p", { class: "quiet" }, `And ${count(more)} more.`) : null,
          embedded || seen.stop_epoch >= Math.min(o.order.epochs ?? Infinity, EPOCHS_SOUGHT)
            ? null
            : button("Look in 10 more epochs", () =>
                load(Math.min(seen.stop_epoch + 10, EPOCHS_SOUGHT)),
              ),
        ];
      },
    );
  load(null);
  return section(title, place);
}

function noOrder() {
  return new URLSearchParams(location.search).has("split")
    ? "This is another split than the one that gristmill view was started with: it has no order of training."
    : "The order of training is not known: start gristmill view with --batch-size, or with the --state of a feed.";
}
