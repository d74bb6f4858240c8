// What a record holds: texts, images, numbers, bytes, and tokens by document.
"use strict";

const TEXT_SHOWN = 20000;
const TOKENS_SHOWN = 4096;
const VALUES_SHOWN = 512;
const KINDS = ["text", "image", "numbers", "bytes"]; // What people look at comes first.
const SAFE_IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;

function fieldParts(record) {
  if (record.size_bytes === 0) return [emptyPanel("The record is empty: it has no bytes.")];
  const single = record.fields.filter((field) => field.kind === "numbers" && field.values === 1);
  const others = record.fields.filter((field) => !single.includes(field));
  others.sort((a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind));
  return [
    single.length
      ? facts(
          single.map((field) => [
            element("code", {}, aside(field.name)),
            element("span", { title: field.dtype }, numberText(field.shown[0])),
          ]),
        )
      : null,
    ...others.map(fieldPart),
  ].filter(Boolean);
}

function fieldPart(field) {
  return element(
    "article",
    { class: "field" },
    element(
      "header",
      {},
      element("h3", {}, field.name === "" ? "bytes of the record" : aside(field.name)),
      element("span", { class: "quiet" }, fieldType(field)),
    ),
    field.shown.length === 0 ? element("p", { class: "quiet" }, "No value.") : fieldValue(field),
    field.cut ? element("p", { class: "quiet note" }, `Not shown: ${shownText(field.cut)}.`) : null,
  );
}

function fieldType(field) {
  const type = field.kind === "text" || field.kind === "image" ? `${field.kind}s` : field.dtype;
  if (field.values > 1)
    return `${count(field.values)} ${field.kind === "numbers" ? `values, ${type}` : type}`;
  return field.kind === "bytes" ? "not text" : "";
}

function fieldValue(field) {
  if (field.kind === "numbers") return numbersValue(field.shown);
  if (
    field.kind === "text" &&
    field.shown.length > 1 &&
    field.shown.every((text) => text !== "" && text.length < 60 && !text.includes("\n"))
  ) {
    return element(
      "ul",
      { class: "chips" },
      field.shown.map((text) => element("li", {}, aside(text))),
    );
  }
  const one = { text: textValue, image: (url) => imageValue(field.name, url), bytes: hexValue }[
    field.kind
  ];
  return element("div", { class: "stack" }, field.shown.map(one));
}

// Long texts come in pieces, so that 10 MB do not stop the page.
function textValue(text) {
  if (text === "") return element("p", { class: "quiet" }, "An empty text.");
  // Code and tables are read by their columns.
  const isCode = (text.slice(0, TEXT_SHOWN).match(/\n(?: {2,}|\t)\S/g) || []).length > 2;
  const shown = element("div", { class: isCode ? "text code" : "text", dir: "auto" });
  const left = element("p", { class: "quiet" });
  const place = element("div", {}, shown, left);
  let at = 0;
  const more = () => {
    let end = Math.min(text.length, at + TEXT_SHOWN);
    // Not between the two halves of one character.
    if (end < text.length && (text.charCodeAt(end - 1) & 0xfc00) === 0xd800) end += 1;
    shown.append(shownText(text.slice(at, end)));
    at = end;
    left.replaceChildren(
      ...(at === text.length
        ? []
        : [
            `${count(at)} of ${plural(text.length, "character")}. `,
            button(`Show ${count(Math.min(TEXT_SHOWN, text.length - at))} more`, more),
          ]),
    );
  };
  more();
  return place;
}

function imageValue(name, url) {
  if (url === null || !SAFE_IMAGE.test(url)) {
    return element(
      "p",
      { class: "quiet" },
      url === null ? "Too large to show." : "Not shown: it is not a PNG, JPEG, GIF or WebP image.",
    );
  }
  const note = element("p", { class: "quiet" });
  const image = element("img", { alt: `Image in the field ${name}`, src: url, decoding: "async" });
  image.addEventListener("load", () => {
    note.textContent = `${count(image.naturalWidth)} × ${count(image.naturalHeight)} pixels`;
  });
  image.addEventListener("error", () => {
    image.remove();
    note.textContent = "The image can't be decoded: its bytes are damaged or cut.";
  });
  return element("div", { class: "image" }, image, note);
}

function numberText(value) {
  if (typeof value !== "number") return shownText(value);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(8)));
}

// Numbers below each other have as many decimals, so that their points are too.
function alignedTexts(values) {
  const sizes = values.map(Math.abs).filter((each) => each > 0 && Number.isFinite(each));
  if (values.every(Number.isInteger) || sizes.length === 0) return values.map(numberText);
  const decimals = Math.min(8, Math.max(0, 5 - Math.floor(Math.log10(Math.max(...sizes)))));
  if (Math.min(...sizes) < 10 ** -decimals) return values.map((each) => each.toExponential(4));
  return values.map((each) => each.toFixed(decimals));
}

function numbersValue(values) {
  const numbers = values.filter((value) => typeof value === "number");
  const least = numbers.reduce((a, b) => Math.min(a, b), Infinity);
  const most = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
  const shown = values.slice(0, VALUES_SHOWN);
  const texts = shown.every((value) => typeof value === "number")
    ? alignedTexts(shown)
    : shown.map(numberText);
  return element(
    "div",
    {},
    element(
      "div",
      { class: "values number" },
      shown.map((value, index) => element("span", { title: numberText(value) }, texts[index])),
    ),
    numbers.length
      ? element("p", { class: "quiet note" }, `From ${numberText(least)} to ${numberText(most)}.`)
      : null,
  );
}

// As hexdump -C: offset, bytes, and what of them is ASCII.
function hexValue(spaced) {
  const hex = spaced.replaceAll(" ", "");
  if (hex === "") return element("p", { class: "quiet" }, "No bytes.");
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const bytes = hex.slice(at, at + 32).match(/../g) || [];
    const ascii = bytes
      .map((byte) => {
        const code = parseInt(byte, 16);
        return code >= 32 && code < 127 ? String.fromCharCode(code) : "·";
      })
      .join("");
    const offset = (at / 2).toString(16).padStart(6, "0");
    lines.push(`${offset}  ${bytes.join(" ").padEnd(47)}  ${ascii}`);
  }
  return element(
    "pre",
    { class: "hex", tabindex: 0, "aria-label": "Bytes in hexadecimal" },
    lines.join("\n"),
  );
}

// Tokens of a packed row: a colour for each document, in a legend and in the row.
function segmentParts(record) {
  const segments = record.segments;
  const used = segments.reduce((sum, each) => sum + each.num_tokens, 0);
  const whole = record.length ?? used;
  const tokens = element("div", {
    class: "tokens",
    dir: "auto",
    role: "region",
    "aria-label": "Tokens",
    tabindex: 0,
  });
  const left = element("p", { class: "quiet" });
  const legend = table(
    [
      ["Piece", ""],
      ["Tokens", "number"],
      ["Row from", "number"],
      ["Document", "number"],
      ["Document from", "number"],
      ["Source", "preview"],
    ],
    segments.map((each, index) => [
      button([swatch(index), count(index)], () => showSegment(tokens, index), {
        class: "plain",
        "aria-label": `Show piece ${index}`,
      }),
      count(each.num_tokens),
      count(each.begin_token),
      "–",
      count(each.first_token),
      "–",
    ]),
    {
      label: "Pieces of documents",
      rowOf: (index) => ({ "data-begin": segments[index].begin_token }),
    },
  );
  legend.classList.add("legend");
  const map = element(
    "div",
    {
      class: "rowmap",
      role: "img",
      "aria-label": `${plural(segments.length, "piece")} fill ${count(used)} of ${plural(whole, "token")}`,
    },
    segments.map((each, index) =>
      element("span", {
        class: `series-${index % SERIES}`,
        style: { width: `${(100 * each.num_tokens) / Math.max(1, whole)}%` },
      }),
    ),
  );
  const all = segments.flatMap((each, index) =>
    each.tokens.map(([id, text], at) => ({
      id,
      text,
      index,
      position: each.begin_token + at,
      span: each.spans?.find((span) => span.begin <= at && at < span.end),
    })),
  );
  let at = 0;
  const more = () => {
    const part = all.slice(at, at + TOKENS_SHOWN);
    let group = null;
    for (const token of part) {
      if (group === null || group.dataset.segment !== String(token.index)) {
        group = element("span", {
          class: `segment series-${token.index % SERIES}`,
          "data-segment": token.index,
        });
        tokens.append(group);
      }
      group.append(tokenSpan(token));
    }
    at += part.length;
    left.replaceChildren(
      ...(at >= all.length
        ? all.length < used
          ? [`Not shown: ${plural(used - all.length, "more token")}.`]
          : []
        : [`${count(at)} of ${plural(used, "token")}. `, button("Show more", more)]),
    );
  };
  more();
  const hasText = all.some(({ text }) => text !== null && text !== undefined);
  return [
    element(
      "p",
      { class: "quiet" },
      `${plural(segments.length, "piece")} of documents in a row of ${plural(whole, "token")}`,
      whole > used
        ? `, of which ${count(whole - used)} are padding (${percent((whole - used) / whole)}).`
        : ", without padding.",
      hasText ? "" : " Start gristmill view with --tokenizer to see text.",
      segments.some((each) => each.spans) ? " Underlined tokens are trained on." : "",
    ),
    map,
    legend,
    tokens,
    left,
  ];
}

function tokenSpan({ id, text, position, span }) {
  const hasText = text !== null && text !== undefined;
  const shown = hasText ? shownText(text).replaceAll("\n", "↵\n") : String(id);
  // A character of several tokens is in the last of them.
  const kind = !hasText ? "token id" : text === "" ? "token part" : "token";
  const said = span ? `, ${span.role}, message ${span.message}` : "";
  const trained = span?.trained ? " trained" : "";
  const title = `token ${count(position)}, id ${id}${said}${trained && ", trained"}`;
  return element("span", { class: kind + trained, title }, shown);
}

// Shows one piece: the others fade until it is chosen again.
function showSegment(tokens, index) {
  const chosen = [...tokens.children].filter((each) => each.dataset.segment === String(index));
  const again = tokens.dataset.chosen === String(index);
  tokens.dataset.chosen = again ? "" : index;
  for (const each of tokens.children)
    each.classList.toggle("dim", !again && !chosen.includes(each));
  if (chosen.length) tokens.scrollTop = chosen[0].offsetTop - tokens.offsetTop - 12;
}

// Puts the sources of the pieces into the legend, once they are known.
function fillLegend(content, pieces) {
  for (const row of content.querySelectorAll(".legend tbody tr")) {
    const piece = pieces.find((each) => String(each.begin_token) === row.dataset.begin);
    if (!piece) continue;
    row.cells[3].textContent = count(piece.document);
    if (!piece.path) continue;
    const name = pathText(piece.path.split("/").pop());
    name.title = shownText(piece.path);
    row.cells[5].replaceChildren(name, placeOf(piece) ? `, ${placeOf(piece)}` : "");
  }
}

// Where in its file a record is, in the words of its format.
function placeOf(s) {
  const compressed = s.compression && s.compression !== "none" ? " of the decompressed file" : "";
  if (known(s.line)) return `line ${count(s.line)}, byte ${count(s.offset_bytes)}${compressed}`;
  if (known(s.row_group))
    return `row ${count(s.record)}, row ${count(s.row_in_group)} of row group ${count(s.row_group)}`;
  if (known(s.record)) return `${s.format === "parquet" ? "row" : "record"} ${count(s.record)}`;
  if (known(s.offset_bytes))
    return (
      (s.sample ? `sample ${shownText(s.sample)} at ` : "") +
      `byte ${count(s.offset_bytes)}${compressed}`
    );
  if (known(s.begin_bytes) && known(s.end_bytes)) {
    return (
      (known(s.number_in_range) ? `record ${count(s.number_in_range)} ` : "") +
      `in the bytes ${count(s.begin_bytes)} to ${count(s.end_bytes)}${compressed}`
    );
  }
  return null;
}

function known(value) {
  return value !== null && value !== undefined;
}
