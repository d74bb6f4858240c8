// Charts, each with its unit, a sentence that says what it shows, and its numbers.
"use strict";

const drawn = new Map(); // Chart's place -> how its option is made.
const SERIES = 8;

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: of("text"),
    quiet: of("quiet"),
    line: of("line"),
    panel: of("panel"),
    accent: of("accent"),
    band: of("band"),
    series: Array.from({ length: SERIES }, (_, index) => of(`series-${index}`)),
    font: getComputedStyle(document.body).fontFamily,
  };
}

// Makes a figure; `option` makes ECharts' from the colours, `rows` are its numbers.
function figure({ title, summary, columns, rows, option, name, act }) {
  const place = element("div", {
    class: "chart",
    role: "img",
    "aria-label": `${title}. ${summary}`,
    "data-chart": name,
  });
  const numbers = element(
    "details",
    {},
    element("summary", {}, "Show as table", element("span", { class: "unseen" }, `: ${title}`)),
  );
  numbers.addEventListener("toggle", () => {
    if (numbers.open && numbers.children.length === 1) {
      numbers.append(table(columns, rows(), { label: `${title}: numbers` }));
    }
  });
  new ResizeObserver(() => draw(place, option, act)).observe(place);
  return element(
    "figure",
    {},
    element("figcaption", {}, element("h3", {}, title), element("p", { class: "quiet" }, summary)),
    place,
    numbers,
  );
}

function draw(place, option, act) {
  if (!place.isConnected || place.clientWidth === 0) return;
  const before = echarts.getInstanceByDom(place);
  if (before) {
    before.resize();
    return;
  }
  const made = echarts.init(place, null, { renderer: "canvas" });
  drawn.set(place, option);
  made.setOption(withStyle(option));
  if (act) {
    // A click anywhere above a value of the axis, not on its thin line alone.
    made.getZr().on("click", ({ offsetX, offsetY }) => {
      const point = [offsetX, offsetY];
      if (made.containPixel("grid", point)) {
        act(made.convertFromPixel("grid", point));
      }
    });
  }
}

function dropCharts(root) {
  for (const place of drawn.keys()) {
    if (root.contains(place)) {
      echarts.getInstanceByDom(place)?.dispose();
      drawn.delete(place);
    }
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [place, option] of drawn) {
    echarts.getInstanceByDom(place).setOption(withStyle(option), true);
  }
});

// What all charts have in common. Tooltips are drawn, not made of HTML.
function withStyle(option) {
  const c = colours();
  const made = option(c);
  const text = { color: c.quiet, fontFamily: c.font, fontSize: 12 };
  const grid = { left: 8, right: 16, top: 30, bottom: 26, containLabel: true, ...made.grid };
  const { name, ...yAxis } = made.yAxis;
  const axis = (own, isValue) => ({
    nameLocation: "middle",
    nameTextStyle: text,
    axisLabel: { ...text, hideOverlap: true, ...(own.axisLabel || {}) },
    axisLine: { show: !isValue, lineStyle: { color: c.line } },
    axisTick: { show: !isValue, lineStyle: { color: c.line } },
    splitLine: { show: isValue, lineStyle: { color: c.line, opacity: 0.6 } },
    ...Object.fromEntries(Object.entries(own).filter(([key]) => key !== "axisLabel")),
  });
  return {
    animation: false,
    textStyle: text,
    ...made,
    grid,
    // Of the y axis: above its numbers, however long these are.
    title: {
      text: name,
      left: 0,
      top: grid.top - 25,
      padding: 0,
      textStyle: { ...text, fontWeight: "normal" },
    },
    xAxis: axis({ nameGap: 26, ...made.xAxis }, false),
    yAxis: axis(yAxis, true),
    tooltip: {
      renderMode: "richText",
      confine: true,
      backgroundColor: c.panel,
      borderColor: c.line,
      borderWidth: 1,
      padding: [6, 10],
      textStyle: { ...text, color: c.text },
      axisPointer: { lineStyle: { color: c.quiet }, snap: true },
      ...made.tooltip,
    },
  };
}

// Round steps for an axis; of sizes, round in their unit: 512 KiB, not 488.3.
function niceStep(span, isSize) {
  let unit = 1;
  while (isSize && span / 4 >= unit * 1024) unit *= 1024;
  const rough = Math.max(span / 5 / unit, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  return Math.max(step * unit, isSize ? 1 : 1e-9);
}

function axisTo(top, isSize) {
  const step = niceStep(Math.max(top, 1), isSize);
  return {
    type: "value",
    min: 0,
    max: Math.ceil(Math.max(top, 1) / step) * step,
    interval: step,
    axisLabel: { formatter: shortest(isSize, step) },
  };
}

// What an axis says at its ticks, which are a step apart.
function shortest(isSize, step) {
  return isSize ? (bytes) => shortSize(bytes, step) : shortCount;
}

function shortSize(bytes, step) {
  return sizeText(bytes, step).replace(".0 ", " ").replace(" bytes", " B").replace(" byte", " B");
}

function shortCount(number) {
  const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
  return Math.abs(number) >= 10000 ? short.format(number) : count(number);
}

// From 0 to what ends it, which need not be round.
function axisUntil(stop) {
  const step = Math.max(1, niceStep(stop, false));
  return {
    type: "value",
    min: 0,
    max: Math.max(1, stop),
    interval: step,
    axisLabel: { formatter: shortCount, showMaxLabel: stop % step === 0 },
  };
}

// A histogram of sizes or counts: `edges` has one more than `counts`.
function histogram({ name, title, data, unit, thing }) {
  const isSize = unit === "bytes";
  const shown = isSize ? sizeText : (number) => `${count(number)} ${unit}`;
  const { edges, counts } = data;
  const spread = edges[edges.length - 1] / edges[0];
  // Bins that grow are drawn as wide as each other, where the axis has ticks then.
  const isLog =
    edges[0] > 0 &&
    spread > 4 &&
    edges[edges.length - 1] - edges[edges.length - 2] > 1.5 * (edges[1] - edges[0]);
  const least = edges[0],
    most = edges[edges.length - 1];
  const step = niceStep(most - least, isSize);
  const summary = [
    `From ${shown(data.min)} to ${shown(data.max)}`,
    `${shown(Math.round(data.mean))} on average`,
    data.exact
      ? `all ${plural(data.of, thing)}`
      : `a sample of ${count(data.sampled)} of ${plural(data.of, thing)}`,
  ].join(", ");
  const between = (index) => `${shown(edges[index])} to ${shown(edges[index + 1])}`;
  return figure({
    name,
    title,
    summary: `${summary}.`,
    columns: [
      [isSize ? "Size" : `Length, ${unit}`, "number"],
      [`${thing}s`, "number"],
    ],
    rows: () => counts.map((each, index) => [between(index), count(each)]),
    option: (c) => ({
      xAxis: {
        ...(isLog
          ? { type: "log", logBase: isSize || spread < 500 ? 2 : 10, min: least, max: most }
          : {
              type: "value",
              interval: step,
              min: Math.floor(least / step) * step,
              max: Math.ceil(most / step) * step,
            }),
        axisLabel: {
          formatter: shortest(isSize, isLog ? undefined : step),
          ...(isLog ? { showMinLabel: false, showMaxLabel: false } : {}),
        },
        name: isSize ? `size of a ${thing}` : `length, ${unit}`,
        splitLine: { show: false },
      },
      yAxis: { ...axisTo(Math.max(...counts), false), name: `${thing}s` },
      tooltip: {
        trigger: "axis",
        formatter: ([{ dataIndex }]) => {
          const index = Math.min(dataIndex, counts.length - 1);
          return `${between(index)}\n${plural(counts[index], thing)}`;
        },
      },
      series: [
        {
          type: "line",
          step: "end",
          symbol: "none",
          lineStyle: { color: c.accent, width: 1.5 },
          areaStyle: { color: c.band, opacity: 1 },
          data: [
            ...counts.map((each, index) => [edges[index], each]),
            [most, counts[counts.length - 1]],
          ],
          markLine: {
            silent: true,
            symbol: "none",
            lineStyle: { color: c.quiet, type: "dashed" },
            label: { formatter: "average", color: c.quiet, position: "end", distance: 2 },
            data: [{ xAxis: data.mean }],
          },
        },
      ],
    }),
  });
}

// How even shards are: a band from the least to the most of a bucket, and the median.
function shardsFigure({ name, title, chart, values, unit }) {
  const isSize = unit === "bytes";
  const shown = isSize ? sizeText : (number) => plural(number, unit.slice(0, -1));
  const least = Math.min(...values.min),
    most = Math.max(...values.max);
  const each = chart.per_bucket === 1;
  const spread = most > 0 ? (most - least) / most : 0;
  const which = (index) => {
    const first = chart.first[index];
    return each
      ? `Shard ${count(first)}`
      : `Shards ${count(first)} to ${count(first + chart.per_bucket - 1)}`;
  };
  const flat = (list) => list.map((value, index) => [chart.first[index], value]);
  return figure({
    name,
    title,
    summary:
      spread === 0
        ? `${chart.total === 1 ? "It has" : "Each has"} ${shown(most)}.`
        : `From ${shown(least)} to ${shown(most)}: the smallest is ${percent(spread)} below the largest.`,
    columns: each
      ? [
          ["Shard", "number"],
          [unit, "number"],
        ]
      : [
          ["Shards", ""],
          ["least", "number"],
          ["median", "number"],
          ["most", "number"],
        ],
    rows: () =>
      chart.first.map((first, index) =>
        each
          ? [link(numberHash("shard", chart.of, first), count(first)), count(values.median[index])]
          : [
              link(numberHash("shard", chart.of, first), which(index)),
              count(values.min[index]),
              count(values.median[index]),
              count(values.max[index]),
            ],
      ),
    act: ([x]) => {
      const past = chart.first.findIndex((first) => first > x);
      const index = each ? Math.round(x) : (past === -1 ? chart.first.length : past) - 1;
      const first = each ? index : chart.first[Math.max(0, index)];
      if (first >= 0 && first < chart.total) location.hash = numberHash("shard", chart.of, first);
    },
    option: (c) => ({
      xAxis: each
        ? {
            type: "category",
            data: chart.first.map(String),
            name: "shard",
            axisLabel: { formatter: (text) => count(Number(text)) },
          }
        : { ...axisUntil(chart.total), name: "shard", splitLine: { show: false } },
      yAxis: { ...axisTo(most, isSize), name: isSize ? "stored size" : unit },
      tooltip: {
        trigger: "axis",
        axisPointer: {
          type: each ? "shadow" : "line",
          shadowStyle: { color: c.line, opacity: 0.4 },
        },
        formatter: ([{ dataIndex: index }]) =>
          each
            ? `${which(index)}\n${shown(values.median[index])}`
            : `${which(index)}\nmost ${shown(values.max[index])}\nmedian ${shown(values.median[index])}\nleast ${shown(values.min[index])}`,
      },
      series: each
        ? [
            {
              type: "bar",
              data: values.median,
              itemStyle: { color: c.accent },
              barMaxWidth: 28,
              barCategoryGap: "25%",
            },
          ]
        : [
            {
              type: "line",
              stack: "band",
              symbol: "none",
              silent: true,
              lineStyle: { width: 0 },
              data: flat(values.min),
            },
            {
              type: "line",
              stack: "band",
              symbol: "none",
              silent: true,
              lineStyle: { width: 0 },
              areaStyle: { color: c.band, opacity: 1 },
              data: flat(values.max.map((value, index) => value - values.min[index])),
            },
            {
              type: "line",
              symbol: "none",
              lineStyle: { color: c.accent, width: 1.5 },
              data: flat(values.median),
            },
          ],
    }),
  });
}
