// One shard: its file, its records, and the sources that it was written from.
"use strict";

const shardView = {
  title: "Shard",
  parent: "dataset",
  enter(root) {
    const head = element("div", { class: "controls" });
    const body = element("div", { class: "view" });
    root.append(head, body);
    return async ({ parts }) => {
      const [of, shard] = numbered(parts);
      const o = await overview(of);
      head.replaceChildren(
        element("h1", {}, "Shard ", element("span", { class: "number" }, count(shard))),
        element("span", { class: "soft" }, o.shards > 0 ? `of 0 to ${count(o.shards - 1)}` : ""),
        element(
          "span",
          { class: "pushed" },
          stepLink("previous", shard > 0 ? numberHash("shard", of, shard - 1) : null),
          stepLink("next", shard < o.shards - 1 ? numberHash("shard", of, shard + 1) : null),
        ),
      );
      await fill(body, ask("shard", { shard, of }), (s) => shardParts(o, s));
    };
  },
};

// "#/record/17", or "#/record/web/17" in a mixture.
function numberHash(view, of, number, query = "") {
  return `#/${view}/` + (of ? `${encodeURIComponent(of)}/` : "") + number + query;
}

function numbered(parts) {
  return parts.length > 1 ? [parts[0], wholeNumber(parts[1])] : ["", wholeNumber(parts[0])];
}

// A link to what comes before or after; at an end, it leads nowhere.
function stepLink(which, hash) {
  const text = which === "previous" ? "← Previous" : "Next →";
  if (hash === null) return element("span", { class: "button off", "aria-disabled": "true" }, text);
  return element("a", { class: "button", href: hash, "data-key": which }, text);
}

function shardParts(o, s) {
  const thing = thingOf(o);
  const last = s.first_record + s.records - 1;
  const hidden = s.num_sources - s.sources.length;
  const hasBytes = s.sources.some((each) => each.begin_bytes !== null);
  return [
    element("p", { class: "quiet" }, pathText(s.file)),
    element(
      "div",
      { class: "tiles" },
      tile(thing === "row" ? "Packed rows" : "Records", count(s.records)),
      s.bytes === null
        ? null
        : tile(
            "Stored",
            size(s.bytes),
            s.raw_bytes && s.bytes > 0 ? ratioText(s.raw_bytes / s.bytes, thing) : null,
          ),
      s.chunks
        ? tile(
            "Chunks",
            count(s.chunks),
            `${(s.records / s.chunks).toFixed(1)} ${thing}s each, on average`,
          )
        : null,
      s.edition === null ? null : tile("Edition", count(s.edition)),
    ),
    facts([
      [
        `${thing}s`,
        s.records > 0
          ? element(
              "span",
              {},
              link(numberHash("record", s.of, s.first_record), count(s.first_record)),
              " to ",
              link(numberHash("record", s.of, last), count(last)),
            )
          : "none",
      ],
      ["digest", s.digest ? element("code", {}, aside(s.digest)) : null],
    ]),
    s.sources.length
      ? section(
          "Sources",
          table(
            [
              ["File", "wide"],
              ...(hasBytes
                ? [
                    ["From byte", "number"],
                    ["To byte", "number"],
                  ]
                : []),
              ["Records", "number"],
            ],
            s.sources.map((each) => [
              pathText(each.path),
              ...(hasBytes ? [count(each.begin_bytes), count(each.end_bytes)] : []),
              count(each.records),
            ]),
            { label: "Ranges of the inputs in this shard" },
          ),
          hidden > 0
            ? element("p", { class: "quiet" }, `And ${plural(hidden, "range")} more.`)
            : null,
        )
      : null,
  ];
}
