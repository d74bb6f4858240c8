// The order of training: the quality of the shuffle, and a mixture's shares over the steps.
"use strict";

const orderView = {
  title: "Order",
  enter(root) {
    const body = element("div", { class: "view" });
    root.append(body);
    return ({ parts, query }) =>
      fill(body, overview(), (o) => {
        if (!o.order) return [element("h1", {}, "Order"), emptyPanel(noOrder())];
        const of = parts[0] || o.of;
        const epoch = wholeNumber(query.get("epoch") || 0);
        const quality = element("div", { class: "stack later" }),
          mixture = element("div", { class: "later" });
        fill(quality, ask("quality", { of, epoch: epoch || null }), qualityParts);
        if (o.order.mixture) fill(mixture, ask("mixture"), (answer) => [mixtureFigure(o, answer)]);
        return [
          element("h1", {}, "Order"),
          orderTiles(o.order),
          o.order.mixture ? section("Shares of the mixture", mixture) : null,
          section("Quality of the shuffle", qualityChoice(o, of, epoch), quality),
        ];
      });
  },
};

function orderTiles(order) {
  return element(
    "div",
    { class: "tiles" },
    tile(
      "Shuffle",
      shownText(order.shuffle || "none"),
      {
        none: "records come as they are stored",
        block: known(order.block_records)
          ? `blocks of ${plural(order.block_records, "record")}, ${count(order.window_blocks)} mixed at a time`
          : null,
      }[order.shuffle] || null,
    ),
    known(order.seed) ? tile("Seed", String(order.seed)) : null,
    tile("Global batch", count(order.batch_size), "rows"),
    // The datasets of a mixture have epochs of their own.
    order.mixture ? null : tile("First epoch", count(order.epoch_steps), "steps"),
    tile(
      "Run",
      order.steps === null ? "no end" : count(order.steps),
      order.steps === null
        ? "epochs follow one another"
        : known(order.epochs)
          ? `steps, ${order.mixture ? "at most " : ""}${plural(order.epochs, "epoch")}`
          : "steps",
    ),
  );
}

// Which dataset of a mixture, and which epoch.
function qualityChoice(o, of, epoch) {
  const at = (name, number) =>
    `#/order${name ? `/${encodeURIComponent(name)}` : ""}` + (number ? `?epoch=${number}` : "");
  const last = known(o.order.epochs) ? o.order.epochs - 1 : Infinity;
  if (embedded || (o.datasets.length < 2 && last === 0)) return null;
  return element(
    "div",
    { class: "controls choice" },
    o.datasets.length > 1
      ? element(
          "select",
          {
            "aria-label": "Dataset",
            onchange: (event) => {
              location.hash = at(event.target.value, epoch);
            },
          },
          o.datasets.map((each) =>
            element(
              "option",
              { value: each.name, selected: each.name === of },
              shownText(each.name),
            ),
          ),
        )
      : null,
    ...(last === 0
      ? []
      : [
          element("span", {}, `Epoch ${count(epoch)}`),
          stepLink("previous", epoch > 0 ? at(of, epoch - 1) : null),
          stepLink("next", epoch < last ? at(of, epoch + 1) : null),
        ]),
  );
}

const QUALITY = [
  [
    "displacement",
    "Mean distance from where a record is stored to where it is seen, as a share of the epoch",
  ],
  ["neighbour_correlation", "Correlation of the records that are seen one after the other"],
  ["adjacent_share", "Share of neighbours in the order that are stored in one block"],
  [
    "blocks_per_batch",
    "Blocks that a batch draws from, as a share of what a uniform order draws from",
  ],
];

function qualityParts(s) {
  if (!s.quality) return [emptyPanel("This epoch has too few records to measure its order.")];
  return [
    table(
      [
        ["Measure", "wide"],
        ["This order", "number"],
        ["A uniform order", "number"],
      ],
      QUALITY.filter(([name]) => known(s.quality[name])).map(([name, text]) => [
        text,
        s.quality[name].toFixed(3),
        s.uniform && known(s.uniform[name]) ? s.uniform[name].toFixed(3) : "–",
      ]),
      { label: "Quality of the shuffle" },
    ),
    s.exact === false
      ? element("p", { class: "quiet" }, "Measured on a sample of the epoch.")
      : null,
  ];
}

function mixtureFigure(o, m) {
  const names = o.datasets.map(({ name }) => name).filter((name) => m.shares[name]);
  const furthest = Math.max(
    0,
    ...names.flatMap((name) =>
      m.shares[name].map((share, index) => Math.abs(share - m.weights[name][index])),
    ),
  );
  const long = m.steps[1] - m.steps[0];
  const until = m.steps[m.steps.length - 1];
  const windowOf = (index) => `${count(m.steps[index])} to ${count(m.steps[index + 1] - 1)}`;
  return figure({
    name: "mixture",
    title: "Share of each dataset in the rows",
    summary: `Shares in ${long === 1 ? "each step" : `windows of ${plural(long, "step")}`}; dashed lines are the weights. No share is more than ${percent(furthest)} of the rows away from its weight.`,
    columns: [
      ["Steps", ""],
      ...names.flatMap((name) => [
        [shownText(name), "number"],
        ["weight", "number"],
      ]),
    ],
    rows: () =>
      m.steps
        .slice(0, -1)
        .map((step, index) => [
          link(`#/step/${step}`, windowOf(index)),
          ...names.flatMap((name) => [
            percent(m.shares[name][index]),
            percent(m.weights[name][index]),
          ]),
        ]),
    act: ([x]) => {
      location.hash = `#/step/${Math.min(until - 1, Math.max(0, Math.round(x)))}`;
    },
    option: (c) => ({
      grid: { top: 62 },
      legend: {
        top: 0,
        left: 0,
        type: "plain",
        textStyle: { color: c.text },
        icon: "roundRect",
        itemWidth: 12,
        itemHeight: 12,
        data: names.map((name) => ({ name })),
      },
      xAxis: { ...axisUntil(until), name: "step", splitLine: { show: false } },
      yAxis: {
        type: "value",
        min: 0,
        name: "share of rows",
        axisLabel: { formatter: (share) => `${Math.round(100 * share)} %` },
      },
      tooltip: {
        trigger: "axis",
        formatter: ([{ dataIndex }]) => {
          const index = Math.min(dataIndex, m.steps.length - 2);
          return [
            `Steps ${windowOf(index)}`,
            ...names.map(
              (name) =>
                `${shownText(name)}: ${percent(m.shares[name][index])} (weight ${percent(m.weights[name][index])})`,
            ),
          ].join("\n");
        },
      },
      series: names.flatMap((name) => {
        const colour = c.series[o.datasets.findIndex((each) => each.name === name) % SERIES];
        // A window's value holds until the next: the last one is drawn to the end.
        const line = (values) => [
          ...values.map((value, index) => [m.steps[index], value]),
          [until, values[values.length - 1]],
        ];
        const own = { type: "line", step: "end", symbol: "none", itemStyle: { color: colour } };
        return [
          { ...own, name, lineStyle: { color: colour, width: 2 }, data: line(m.shares[name]) },
          {
            ...own,
            name: `weight of ${name}`,
            silent: true,
            lineStyle: { color: colour, width: 1, type: "dashed" },
            data: line(m.weights[name]),
          },
        ];
      }),
    }),
  });
}
