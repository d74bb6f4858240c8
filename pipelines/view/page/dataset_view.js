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
    element("div", {},
      element("h1", {}, aside(o.name), o.split ? element("span", { class: "soft" }, " / ", aside(o.split)) : null),
      element("p", { class: "quiet" }, pathText(o.path))),
    warningsPart(o), tilesPart(o), mixturePart(o), shardsPart(o),
    later("Lengths", "sizes", (sizes) => lengthsPart(o, sizes)),
    compressionPart(o),
    later("Lineage", "lineage", (lineage) => lineagePart(o, lineage)),
    editionsPart(o), quarantinePart(o), featuresPart(o), splitsPart(o),
  ];
}

function thingOf(o) {
  return o.kind === "packed" ? "row" : "record";
}

// Of bytes of records in a stored byte.
function ratioText(ratio, thing) {
  return ratio >= 1 ? `${ratio.toFixed(2)} times smaller than the ${thing}s`
    : `${(1 / ratio).toFixed(2)} times the size of the ${thing}s`;
}

function warningsPart(o) {
  if (o.warnings.length === 0) return null;
  return element("ul", { class: "panel warn", "aria-label": "Warnings" },
    o.warnings.map((each) => element("li", {}, shownText(each))));
}

function tilesPart(o) {
  const thing = thingOf(o);
  const packed = o.packed_counts;
  return element("div", { class: "tiles" },
    tile(thing === "row" ? "Packed rows" : "Records", count(o.records), o.raw_bytes !== null && o.records > 0
      ? `${sizeText(o.raw_bytes / o.records)} each, on average` : null),
    packed ? tile("Documents", count(packed.documents), packed.documents > 0
      ? `${count(Math.round(packed.tokens / packed.documents))} tokens each, on average` : null) : null,
    packed ? tile("Tokens", shortCount(packed.tokens), packed.tokens + packed.padding_tokens > 0
      ? `and ${percent(packed.padding_tokens / (packed.tokens + packed.padding_tokens))} padding` : null) : null,
    o.file_bytes === null ? null : tile("Stored", size(o.file_bytes), o.ratio ? ratioText(o.ratio, thing) : null),
    tile("Shards", count(o.shards), o.file_bytes !== null && o.shards > 0 ? `${sizeText(o.file_bytes / o.shards)} each, on average` : null),
    o.editions.length ? tile("Editions", count(o.editions.length), o.editions.length > 1 ? "the first, and appends" : null) : null,
    o.order ? tile("First epoch", plural(o.order.epoch_steps, "step"), `of ${plural(o.order.batch_size, "row")}`) : null);
}

// Of a mixture: its datasets, each with a page of its own.
function mixturePart(o) {
  if (o.datasets.length < 2) return null;
  return section("Datasets of the mixture", table(
    [["Dataset", ""], ["Weight", "number"], ["Records", "number"], ["Path", "wide"]],
    o.datasets.map((each, index) => [
      element("span", {}, swatch(index), each.name === o.of ? element("b", {}, aside(each.name))
        : link(`#/dataset/${encodeURIComponent(each.name)}`, aside(each.name))),
      known(each.weight) ? percent(each.weight) : "–", count(each.records), pathText(each.path)]),
    { label: "Datasets of the mixture" }));
}

function swatch(index) {
  return element("span", { class: `swatch series-${index % SERIES}`, "aria-hidden": "true" });
}

function shardsPart(o) {
  if (o.shards === 0 || !o.shards_chart) return section("Shards", emptyPanel("There is no shard: the split is empty."));
  const chart = { ...o.shards_chart, total: o.shards, of: o.of };
  const go = element("input", { type: "number", min: 0, max: o.shards - 1, inputmode: "numeric", placeholder: "0" });
  const form = element("form", { class: "go", onsubmit: (event) => {
    event.preventDefault();
    if (go.value !== "") location.hash = numberHash("shard", o.of, go.value);
  } }, element("label", {}, "Shard ", go), button("Open", null, { type: "submit" }));
  const things = `${thingOf(o)}s`;
  const listed = (shards, title) => (shards.length ? element("div", {}, element("h3", {}, title), table(
    [["Shard", "number"], [things === "rows" ? "Rows" : "Records", "number"], ["Stored", "number"]],
    shards.map((each) => [link(numberHash("shard", o.of, each.shard), count(each.shard)), count(each.records), size(each.bytes)]),
    { label: title })) : null);
  return section("Shards",
    element("div", { class: "pair" },
      shardsFigure({ name: "shard-records", title: `${things === "rows" ? "Rows" : "Records"} of each shard`, chart, values: chart.records, unit: things }),
      chart.bytes ? shardsFigure({ name: "shard-bytes", title: "Stored size of each shard", chart, values: chart.bytes, unit: "bytes" }) : null),
    form,
    o.shards > 24 ? element("div", { class: "pair" }, listed(o.largest_shards, "Largest shards"), listed(o.smallest_shards, "Smallest shards")) : null);
}

function lengthsPart(o, sizes) {
  const charts = [];
  const add = (data, options) => {
    if (data && data.counts.length) charts.push(histogram({ data, ...options }));
  };
  add(sizes.document_tokens, { name: "document-tokens", title: "Lengths of documents", unit: "tokens", thing: "document" });
  add(sizes.record_bytes, { name: "record-bytes", title: `Sizes of ${thingOf(o)}s`, unit: "bytes", thing: thingOf(o) });
  if (charts.length === 0) return emptyPanel("There is no record to measure.");
  return element("div", { class: charts.length > 1 ? "pair" : "" }, charts);
}

// Sizes as bars on one scale: what was read, what the records are, what is stored.
function compressionPart(o) {
  const sizes = [
    ["Input files", o.input_bytes], [`${thingOf(o) === "row" ? "Rows" : "Records"}, not compressed`, o.raw_bytes],
    ["Stored shards", o.file_bytes],
  ].filter(([, bytes]) => bytes !== null && bytes !== undefined);
  if (sizes.length < 2) return null;
  const most = Math.max(...sizes.map(([, bytes]) => bytes), 1);
  return section("Compression",
    element("ul", { class: "bars" }, sizes.map(([name, bytes]) => element("li", {},
      element("span", { class: "name" }, name), bar(bytes, most), element("span", {}, size(bytes))))),
    facts([["written with", element("span", {}, o.writer_options.map((each) =>
      element("div", {}, element("code", {}, aside(each)))))]]));
}

function bar(value, most) {
  return element("span", { class: "bar" }, element("span", { style: { width: `${(100 * value) / Math.max(1, most)}%` } }));
}

function lineagePart(o, lineage) {
  const editions = lineage.editions;
  if (editions.length === 0) return emptyPanel("Not known: these files have no description of a dataset.");
  return element("div", { class: "stack" }, editions.map((each) => {
    const flow = [["Source", each.source || plural(each.num_files, "file"), null]];
    if (o.map) flow.push(["Function", o.map, null]);
    const own = o.editions.find(({ number }) => number === each.number) || o;
    flow.push([editions.length > 1 ? `Edition ${count(each.number)}` : "Dataset",
      plural(own.records, thingOf(o)), plural(own.shards, "shard")]);
    return element("div", { class: "stack" },
      element("ol", { class: "flow" }, flow.map(([name, what, note]) => element("li", {},
        element("span", { class: "name" }, name), element("b", {}, aside(what)),
        note ? element("span", { class: "quiet" }, note) : null))),
      each.parents.length ? table([["Made from", "wide"], ["Split", ""], ["Records", "number"]], each.parents.map((parent) => [
        element("span", {}, pathText(parent.dataset), parent.function ? element("div", { class: "quiet" }, "with ", aside(parent.function)) : null),
        aside(parent.split || "–"), count(parent.records)]), { label: "Datasets that it was made from" }) : null,
      filesPart(each));
  }));
}

function filesPart(edition) {
  if (edition.files.length === 0) return null;
  const most = Math.max(1, ...edition.files.map((file) => file.bytes || 0));
  const hidden = edition.num_files - edition.files.length;
  const rows = edition.files.map((file) => [pathText(file.path),
    [file.format, file.compression && file.compression !== "none" ? file.compression : null].filter(Boolean).join(", "),
    count(file.records), size(file.bytes), bar(file.bytes || 0, most)]);
  return element("details", { open: edition.files.length <= 8 },
    element("summary", {}, `Files (${count(edition.num_files)})`),
    table([["File", "wide"], ["Format", ""], ["Records", "number"], ["Size", "number"], ["", "meter"]], rows, { label: "Input files" }),
    hidden > 0 ? element("p", { class: "quiet" }, `And ${plural(hidden, "file")} more.`) : null);
}

function editionsPart(o) {
  if (o.editions.length === 0) return null;
  return section("Editions", table(
    [["Edition", "number"], [o.kind === "packed" ? "Rows" : "Records", "number"], ["Shards", "number"], ["Not compressed", "number"], ["Stored", "number"], ["Made by", ""]],
    o.editions.map((each) => [count(each.number), count(each.records), count(each.shards), size(each.raw_bytes), size(each.file_bytes),
      each.made_by ? `gristmill ${shownText(each.made_by)}` : "–"]),
    { label: "Editions" }),
  o.digest ? facts([["digest", element("code", {}, aside(o.digest))]]) : null);
}

function quarantinePart(o) {
  if (o.quarantined_regions === 0) {
    return section("Quarantine", emptyPanel("Nothing was set aside: no damage was found in the inputs."));
  }
  const place = element("div", { class: "later" });
  fill(place, ask("lineage", { of: o.of }), ({ quarantine }) => (quarantine ? [table(
    [["File", "wide"], ["From", "number"], ["To", "number"], ["Damaged", "wide"], ["In shard", "number"]],
    quarantine.shown.map((each) => [pathText(each.file),
      each.begin_row === null ? `byte ${count(each.begin_bytes)}` : `row ${count(each.begin_row)}`,
      each.end_row === null ? `byte ${count(each.end_bytes)}` : `row ${count(each.end_row)}`,
      element("span", {}, aside(each.reason), each.detail ? element("div", { class: "quiet" }, aside(each.detail)) : null),
      each.shard === null || each.shard === undefined ? "–" : link(numberHash("shard", o.of, each.shard), count(each.shard))]),
    { label: "Regions that were set aside" }), quarantine.note ? element("p", { class: "quiet" }, shownText(quarantine.note)) : null] : []));
  return section("Quarantine", element("p", {}, `${plural(o.quarantined_regions, "damaged region")} of the inputs, ${sizeText(o.quarantined_bytes)}, set aside.`), place);
}

function featuresPart(o) {
  const packed = o.packed && o.packed.length ? section("Packed rows", facts(o.packed.map(([head, text]) => [shownText(head), aside(text)]))) : null;
  const features = o.features.length ? section("Features", table([["Name", ""], ["Type", "wide"]],
    o.features.map((each) => [element("code", {}, aside(each.name)), aside(each.text)]), { label: "Features of a record" })) : null;
  return packed && features ? element("div", { class: "pair" }, packed, features) : packed || features;
}

function splitsPart(o) {
  if (o.splits.length < 2) return null;
  return section("Splits", table([["Split", ""], ["Records", "number"], ["Shards", "number"]], o.splits.map((each) => [
    each.name === o.split ? element("b", {}, aside(each.name))
      : embedded ? aside(each.name) : element("a", { href: `?split=${encodeURIComponent(each.name)}` }, aside(each.name)),
    count(each.records), count(each.shards)]), { label: "Splits" }));
}
