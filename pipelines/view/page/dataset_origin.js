// How a dataset came to be: compression, sources, editions, damage, and what it holds.
"use strict";

// Sizes as bars on one scale: what was read, what the records are, what is stored.
function compressionPart(o) {
  const sizes = [
    ["Input files", o.input_bytes],
    [`${thingOf(o) === "row" ? "Rows" : "Records"}, not compressed`, o.raw_bytes],
    ["Stored shards", o.file_bytes],
  ].filter(([, bytes]) => bytes !== null && bytes !== undefined);
  if (sizes.length < 2) return null;
  const most = Math.max(...sizes.map(([, bytes]) => bytes), 1);
  return section(
    "Compression",
    element(
      "ul",
      { class: "bars" },
      sizes.map(([name, bytes]) =>
        element(
          "li",
          {},
          element("span", { class: "name" }, name),
          bar(bytes, most),
          element("span", {}, size(bytes)),
        ),
      ),
    ),
    facts([
      [
        "written with",
        element(
          "span",
          {},
          o.writer_options.map((each) => element("div", {}, element("code", {}, aside(each)))),
        ),
      ],
    ]),
  );
}

function bar(value, most) {
  return element(
    "span",
    { class: "bar" },
    element("span", { style: { width: `${(100 * value) / Math.max(1, most)}%` } }),
  );
}

function lineagePart(o, lineage) {
  const editions = lineage.editions;
  if (editions.length === 0)
    return emptyPanel("Not known: these files have no description of a dataset.");
  const isJoined = new Set(editions.map(({ path, split }) => `${path}/${split}`)).size > 1;
  return element(
    "div",
    { class: "stack" },
    editions.map((each) => {
      const flow = [["Source", each.source || plural(each.num_files, "file"), null]];
      if (o.map) flow.push(["Function", o.map, null]);
      flow.push([
        editions.some(({ number }) => number > 1) ? `Edition ${count(each.number)}` : "Dataset",
        plural(each.records, thingOf(o)),
        plural(each.shards, "shard"),
      ]);
      return element(
        "div",
        { class: "stack" },
        isJoined
          ? element(
              "h3",
              {},
              pathText(each.path),
              each.split ? element("span", { class: "soft" }, " / ", aside(each.split)) : null,
            )
          : null,
        element(
          "ol",
          { class: "flow" },
          flow.map(([name, what, note]) =>
            element(
              "li",
              {},
              element("span", { class: "name" }, name),
              element("b", {}, aside(what)),
              note ? element("span", { class: "quiet" }, note) : null,
            ),
          ),
        ),
        each.parents.length
          ? table(
              [
                ["Made from", "wide"],
                ["Split", ""],
                ["Records", "number"],
              ],
              each.parents.map((parent) => [
                element(
                  "span",
                  {},
                  pathText(parent.dataset),
                  parent.function
                    ? element("div", { class: "quiet" }, "with ", aside(parent.function))
                    : null,
                ),
                aside(parent.split || "–"),
                count(parent.records),
              ]),
              { label: "Datasets that it was made from" },
            )
          : null,
        filesPart(each),
      );
    }),
  );
}

function filesPart(edition) {
  if (edition.files.length === 0) return null;
  const most = Math.max(1, ...edition.files.map((file) => file.bytes || 0));
  const hidden = edition.num_files - edition.files.length;
  const rows = edition.files.map((file) => [
    pathText(file.path),
    [file.format, file.compression && file.compression !== "none" ? file.compression : null]
      .filter(Boolean)
      .join(", "),
    count(file.records),
    size(file.bytes),
    bar(file.bytes || 0, most),
  ]);
  return element(
    "details",
    { open: edition.files.length <= 8 },
    element("summary", {}, `Files (${count(edition.num_files)})`),
    table(
      [
        ["File", "wide"],
        ["Format", ""],
        ["Records", "number"],
        ["Size", "number"],
        ["", "meter"],
      ],
      rows,
      { label: "Input files" },
    ),
    hidden > 0 ? element("p", { class: "quiet" }, `And ${plural(hidden, "file")} more.`) : null,
  );
}

function editionsPart(o) {
  if (o.editions.length === 0) return null;
  return section(
    "Editions",
    table(
      [
        ["Edition", "number"],
        [o.kind === "packed" ? "Rows" : "Records", "number"],
        ["Shards", "number"],
        ["Not compressed", "number"],
        ["Stored", "number"],
        ["Made by", ""],
      ],
      o.editions.map((each) => [
        count(each.number),
        count(each.records),
        count(each.shards),
        size(each.raw_bytes),
        size(each.file_bytes),
        [
          each.how + (each.replaced ? "; replaced, and kept" : ""),
          ...(each.made_by ? [`gristmill ${shownText(each.made_by)}`] : []),
        ].join(", "),
      ]),
      { label: "Editions" },
    ),
    o.digest ? facts([["digest", element("code", {}, aside(o.digest))]]) : null,
  );
}

function quarantinePart(o) {
  if (o.quarantined_regions === 0) {
    return section(
      "Quarantine",
      emptyPanel("Nothing was set aside: no damage was found in the inputs."),
    );
  }
  const place = element("div", { class: "later" });
  fill(place, ask("lineage", { of: o.of }), ({ quarantine }) =>
    quarantine
      ? [
          quarantine.shown.length === 0
            ? null
            : table(
                [
                  ["File", "wide"],
                  ["From", "number"],
                  ["To", "number"],
                  ["Damaged", "wide"],
                  ["In shard", "number"],
                ],
                quarantine.shown.map((each) => [
                  pathText(each.file),
                  each.begin_row === null
                    ? `byte ${count(each.begin_bytes)}`
                    : `row ${count(each.begin_row)}`,
                  each.end_row === null
                    ? `byte ${count(each.end_bytes)}`
                    : `row ${count(each.end_row)}`,
                  element(
                    "span",
                    {},
                    aside(each.reason),
                    each.detail ? element("div", { class: "quiet" }, aside(each.detail)) : null,
                  ),
                  each.shard === null || each.shard === undefined
                    ? "–"
                    : link(numberHash("shard", o.of, each.shard), count(each.shard)),
                ]),
                { label: "Regions that were set aside" },
              ),
          quarantine.shown.length < quarantine.regions
            ? element(
                "p",
                { class: "quiet" },
                `Not shown: ${plural(quarantine.regions - quarantine.shown.length, "region")}.`,
              )
            : null,
          quarantine.note ? element("p", { class: "quiet" }, shownText(quarantine.note)) : null,
        ]
      : [],
  );
  return section(
    "Quarantine",
    element(
      "p",
      {},
      `${plural(o.quarantined_regions, "damaged region")} of the inputs, ${sizeText(o.quarantined_bytes)}, set aside.`,
    ),
    place,
  );
}

function featuresPart(o) {
  const packed =
    o.packed && o.packed.length
      ? section(
          "Packed rows",
          facts(o.packed.map(([head, text]) => [shownText(head), aside(text)])),
        )
      : null;
  const features = o.features.length
    ? section(
        "Features",
        table(
          [
            ["Name", ""],
            ["Type", "wide"],
          ],
          o.features.map((each) => [element("code", {}, aside(each.name)), aside(each.text)]),
          { label: "Features of a record" },
        ),
      )
    : null;
  return packed && features
    ? element("div", { class: "pair" }, packed, features)
    : packed || features;
}

function splitsPart(o) {
  if (o.splits.length < 2) return null;
  return section(
    "Splits",
    table(
      [
        ["Split", ""],
        ["Records", "number"],
        ["Shards", "number"],
      ],
      o.splits.map((each) => [
        each.name === o.split
          ? element("b", {}, aside(each.name))
          : embedded
            ? aside(each.name)
            : element("a", { href: `?split=${encodeURIComponent(each.name)}` }, aside(each.name)),
        count(each.records),
        count(each.shards),
      ]),
      { label: "Splits" },
    ),
  );
}
