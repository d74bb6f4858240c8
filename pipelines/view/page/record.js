// What a record holds: texts, images, numbers, bytes, and tokens by document.
"use strict";

const SAFE_IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;
const KINDS = ["text", "image", "numbers", "bytes"]; // What people look at comes first.

function recordParts(record) {
  if (record.error) return [panel("It cannot be read", facts(record.error))];
  if (record.pieces) return pieceParts(record);
  if (record.bytes === 0) return [quiet("The record is empty: it has no bytes.")];
  const isOne = (field) => field.kind === "numbers" && field.values === 1;
  const others = record.fields.filter((field) => !isOne(field));
  others.sort((a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind));
  const single = record.fields.filter(isOne);
  return [
    single.length ? facts(single.map(({ name, shown }) => [name, numberText(shown[0])])) : null,
    ...others.map(fieldPart),
  ];
}

function fieldPart(field) {
  const one = { text: textValue, image: imageValue, bytes: hexValue }[field.kind];
  return element(
    "article",
    { class: "field" },
    element(
      "header",
      {},
      element("h3", {}, field.name === "" ? "bytes of the record" : aside(field.name)),
      field.values > 1 ? element("span", { class: "quiet" }, plural(field.values, "value")) : null,
    ),
    field.values === 0 ? quiet("No value.") : null,
    one
      ? field.shown.map(one)
      : element("div", { class: "values" }, field.shown.map(numberText).join("  ")),
    field.cut ? quiet(`Not shown: ${shownText(field.cut)}.`) : null,
  );
}

function textValue(text) {
  if (text === "") return quiet("An empty text.");
  // Code and tables are read by their columns.
  const isCode = (text.match(/\n(?: {2,}|\t)\S/g) || []).length > 2;
  return element("div", { class: isCode ? "text code" : "text", dir: "auto" }, shownText(text));
}

function imageValue(url) {
  if (url === null || !SAFE_IMAGE.test(url)) return null;
  const image = element("img", { alt: "Image in this field", src: url, decoding: "async" });
  image.addEventListener("error", () =>
    image.replaceWith(quiet("The image can't be decoded: its bytes are damaged or cut.")),
  );
  return element("div", { class: "image" }, image);
}

function numberText(value) {
  if (typeof value !== "number") return shownText(value);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(8)));
}

// As hexdump -C: offset, bytes, and what of them is ASCII.
function hexValue(spaced) {
  const bytes = spaced.split(" ");
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const some = bytes.slice(at, at + 16);
    const codes = some.map((byte) => parseInt(byte, 16));
    const ascii = codes.map((code) => (code >= 32 && code < 127 ? String.fromCharCode(code) : "·"));
    const offset = at.toString(16).padStart(6, "0");
    lines.push(`${offset}  ${some.join(" ").padEnd(47)}  ${ascii.join("")}`);
  }
  return element("pre", { class: "hex", tabindex: 0 }, lines.join("\n"));
}

// A packed row: each piece of a document in a block, with its source and its tokens.
function pieceParts({ pieces, length }) {
  const used = pieces.reduce((sum, each) => sum + each.end - each.begin, 0);
  const isTrained = pieces.some(({ spans }) => spans !== null);
  return [
    quiet(
      `${plural(pieces.length, "piece")} of documents fill ${count(used)} of `,
      `${plural(length, "token")}. `,
      isTrained ? [element("span", { class: "token trained" }, "These"), " are trained on. "] : "",
      pieces.some(({ tokens }) => tokens.some(([, text]) => text !== null))
        ? ""
        : "Give --tokenizer to see text.",
    ),
    ...pieces.map(piecePart),
  ];
}

function piecePart(piece) {
  const { begin, end, document: number, first, source, tokens, spans } = piece;
  const cut = end - begin - tokens.length;
  return element(
    "article",
    { class: "piece" },
    element(
      "header",
      {},
      element("h3", {}, `Tokens ${count(begin)} to ${count(end)}`),
      element(
        "span",
        { class: "quiet" },
        `document ${count(number)} of the shard`,
        first > 0 ? `, from its token ${count(first)} on` : "",
      ),
    ),
    source.length
      ? quiet(source.map(([, text]) => aside(text)).flatMap((one) => [one, " "]))
      : null,
    element(
      "div",
      { class: "tokens", dir: "auto" },
      tokens.map(([id, text], at) =>
        tokenSpan(
          id,
          text,
          begin + at,
          spans && spans.find((span) => span.begin <= at && at < span.end),
        ),
      ),
    ),
    cut > 0 ? quiet(`Not shown: ${plural(cut, "more token")}.`) : null,
  );
}

function tokenSpan(id, text, position, span) {
  const trained = span && span.trained;
  const said = span ? `, ${span.role}, message ${span.message}` : "";
  return element(
    "span",
    {
      class: `token${text === null ? " id" : ""}${trained ? " trained" : ""}`,
      title: `token ${count(position)}, id ${id}${said}${trained ? ", trained" : ""}`,
    },
    text === null ? String(id) : shownText(text).replaceAll("\n", "↵\n"),
  );
}
