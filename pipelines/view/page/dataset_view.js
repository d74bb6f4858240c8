// The dataset at a glance: sizes, shards, lengths, and where it came from.
"use strict";

const datasetView = {
  title: "Dataset",
  enter(root) {
    const body = element("div", { class: "view" });
    root.append(body);
    return ({ parts }) => fill(body, overview(parts[0]), datasetParts);
  },
};

function datasetParts(o) {
  const later = (title, name, build) => {
    const place = element("div", { class: "later" });
    fill(place, ask(name, { of: o.of }), build);
    return section(title, place);
  };
  return [
    element(
      "div",
      {},
      element(
        "h1",
        {},
        aside(o.name),
        o.split ? element("span", { class: "soft" }, " / ", aside(o.split)) : null,
      ),
      element("p", { class: "quiet" }, pathText(o.path)),
    ),
    warningsPart(o),
    tilesPart(o),
    mixturePart(o),
    shardsPart(o),
    later("Lengths", "sizes", (sizes) => lengthsPart(o, sizes)),
    compressionPart(o),
    later("Lineage", "lineage", (lineage) => lineagePart(o, lineage)),
    editionsPart(o),
    quarantinePart(o),
    featuresPart(o),
    splitsPart(o),
  ];
}

function thingOf(o) {
  return o.kind === "packed" ? "row" : "record";
}

// Of bytes of records in a stored byte.
function ratioText(ratio, thing) {
  return ratio >= 1
    ? `${ratio.toFixed(2)} times smaller than the ${thing}s`
    : `${(1 / ratio).toFixed(2)} times the size of the ${thing}s`;
}

function warningsPart(o) {
  if (o.warnings.length === 0) return null;
  return element(
    "ul",
    { class: "panel warn", "aria-label": "Warnings" },
    o.warnings.map((each) => element("li", {}, shownText(each))),
  );
}

function tilesPart(o) {
  const thing = thingOf(o);
  const packed = o.packed_counts;
  return element(
    "div",
    { class: "tiles" },
    tile(
      thing === "row" ? "Packed rows" : "Records",
      count(o.records),
      o.raw_bytes !== null && o.records > 0
        ? `${sizeText(o.raw_bytes / o.records)} each, on average`
        : null,
    ),
    packed
      ? tile(
          "Documents",
          count(packed.documents),
          packed.documents > 0
            ? `${count(Math.round(packed.tokens / packed.documents))} tokens each, on average`
            : null,
        )
      : null,
    packed
      ? tile(
          "Tokens",
          shortCount(packed.tokens),
          packed.tokens + packed.padding_tokens > 0
            ? `and ${percent(packed.padding_tokens / (packed.tokens + packed.padding_tokens))} padding`
            : null,
        )
      : null,
    o.file_bytes === null
      ? null
      : tile("Stored", size(o.file_bytes), o.ratio ? ratioText(o.ratio, thing) : null),
    tile(
      "Shards",
      count(o.shards),
      o.file_bytes !== null && o.shards > 0
        ? `${sizeText(o.file_bytes / o.shards)} each, on average`
        : null,
    ),
    o.editions.length
      ? tile(
          "Editions",
          count(o.editions.filter(({ replaced }) => !replaced).length),
          o.editions.some(({ replaced }) => replaced) ? "and replaced ones that are kept" : null,
        )
      : null,
    o.order && !o.order.mixture
      ? tile(
          "First epoch",
          plural(o.order.epoch_steps, "step"),
          `of ${plural(o.order.batch_size, "row")}`,
        )
      : null,
  );
}

// Of a mixture: its datasets, each with a page of its own.
function mixturePart(o) {
  if (o.datasets.length < 2) return null;
  return section(
    "Datasets of the mixture",
    table(
      [
        ["Dataset", ""],
        ["Weight", "number"],
        ["Records", "number"],
        ["Path", "wide"],
      ],
      o.datasets.map((each, index) => [
        element(
          "span",
          {},
          swatch(index),
          each.name === o.of
            ? element("b", {}, aside(each.name))
            : link(`#/dataset/${encodeURIComponent(each.name)}`, aside(each.name)),
        ),
        known(each.weight) ? percent(each.weight) : "–",
        count(each.records),
        pathText(each.path),
      ]),
      { label: "Datasets of the mixture" },
    ),
  );
}

function swatch(index) {
  return element("span", { class: `swatch series-${index % SERIES}`, "aria-hidden": "true" });
}

function shardsPart(o) {
  if (o.shards === 0 || !o.shards_chart)
    return section("Shards", emptyPanel("There is no shard: the split is empty."));
  const chart = { ...o.shards_chart, total: o.shards, of: o.of };
  const go = element("input", {
    type: "number",
    min: 0,
    max: o.shards - 1,
    inputmode: "numeric",
    placeholder: "0",
  });
  const form = element(
    "form",
    {
      class: "go",
      onsubmit: (event) => {
        event.preventDefault();
        if (go.value !== "") location.hash = numberHash("shard", o.of, go.value);
      },
    },
    element("label", {}, "Shard ", go),
    button("Open", null, { type: "submit" }),
  );
  const things = `${thingOf(o)}s`;
  const listed = (shards, title) =>
    shards.length
      ? element(
          "div",
          {},
          element("h3", {}, title),
          table(
            [
              ["Shard", "number"],
              [things === "rows" ? "Rows" : "Records", "number"],
              ["Stored", "number"],
            ],
            shards.map((each) => [
              link(numberHash("shard", o.of, each.shard), count(each.shard)),
              count(each.records),
              size(each.bytes),
            ]),
            { label: title },
          ),
        )
      : null;
  return section(
    "Shards",
    element(
      "div",
      { class: "pair" },
      shardsFigure({
        name: "shard-records",
        title: `${things === "rows" ? "Rows" : "Records"} of each shard`,
        chart,
        values: chart.records,
        unit: things,
      }),
      chart.bytes
        ? shardsFigure({
            name: "shard-bytes",
            title: "Stored size of each shard",
            chart,
            values: chart.bytes,
            unit: "bytes",
          })
        : null,
    ),
    form,
    o.shards > 24
      ? element(
          "div",
          { class: "pair" },
          listed(o.largest_shards, "Largest shards"),
          listed(o.smallest_shards, "Smallest shards"),
        )
      : null,
  );
}

function lengthsPart(o, sizes) {
  const charts = [];
  const add = (data, options) => {
    if (data && data.counts.length) charts.push(histogram({ data, ...options }));
  };
  add(sizes.document_tokens, {
    name: "document-tokens",
    title: "Lengths of documents",
    unit: "tokens",
    thing: "document",
  });
  add(sizes.record_bytes, {
    name: "record-bytes",
    title: `Sizes of ${thingOf(o)}s`,
    unit: "bytes",
    thing: thingOf(o),
  });
  if (charts.length === 0) return emptyPanel("There is no record to measure.");
  return element("div", { class: charts.length > 1 ? "pair" : "" }, charts);
}
