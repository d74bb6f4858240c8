"""The description of a dataset on the page: tables, facts, charts and records."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.dataset.base.errors import GristmillError, some_of
from gristmill.dataset.base.example import Values
from gristmill.dataset.metadata.sources import read_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.data.part import Part
from gristmill.loader.provenance.stored_sources import PackedShard, packed_of
from gristmill.loader.provenance.trace import Location, SourcePlace, locate_record
from gristmill.pipelines.text.places import place_facts, source_facts
from gristmill.pipelines.text.printer import fact_pairs, plural, size_text
from gristmill.pipelines.text.records import features_of
from gristmill.pipelines.text.split_editions import made_by
from gristmill.pipelines.text.split_facts import feature_text, split_facts

if TYPE_CHECKING:
    from gristmill.transforms.tokens.tokenizer import Tokenizer


_LISTED = 100
"""Shards, files or features of one table."""

_IN_TILES = ("records", "size", "digest")
_BINS = 30
_PLACES, _PLACE_RECORDS, _SAMPLE_BYTES = 64, 32, 8 << 20
_SAMPLED_SHARDS, _SAMPLED_ROWS = 4, 512

_STORED = (["Records", 1], ["Shards", 1], ["Not compressed", 1], ["Stored", 1])
Section = dict[str, Any]
"""`title`, and `facts`, a `chart` of `histogram`, or a table: `columns` as [title,
whether numbers], `rows`, `more`."""


def described(dataset: Dataset, name: str = "") -> dict[str, Any]:
    """Returns the description of a dataset, as JSON values.

    It reads the tables and lists of the dataset, and a sample of its records.
    """
    parts = dataset.stored.parts
    found = [(part, edition) for part in parts for edition in part.editions]
    return {
        "name": name,
        "title": title_of(dataset),
        "split": dataset.facts.split,
        "path": some_of(dict.fromkeys(part.path for part in parts)),
        "records": len(dataset),
        "thing": "row" if dataset.stored.is_packed else "record",
        "tiles": [*_tiles(dataset)],
        "sections": [
            *_splits(dataset),
            *_shards(dataset),
            *_lengths(dataset),
            *_sources(found),
            *_contents(dataset, found),
        ],
    }


def title_of(dataset: Dataset) -> str:
    """Returns the name of a dataset, or of files without a description."""
    only = dataset.stored.only
    return only.manifest.name if only and only.manifest else "files"


def _tiles(dataset: Dataset) -> Iterator[tuple[str, str, str]]:
    """Yields the most important numbers, each with a note."""
    stored, mean = dataset.stored.shards.file_bytes, dataset.facts.mean_record_bytes
    known = bool((stored >= 0).all())
    thing = "Packed rows" if dataset.stored.is_packed else "Records"
    each = "" if mean is None else f"{size_text(mean)} each, on average"
    yield thing, f"{len(dataset):,}", each
    if (counts := dataset.stored.packed) is not None:
        yield "Documents", f"{counts.documents:,}", ""
        places = counts.tokens + counts.padding_tokens
        padding = counts.padding_tokens / max(places, 1)
        yield "Tokens", f"{counts.tokens:,}", f"and {padding:.2%} padding"
    each = ""
    if known:
        yield "Stored", size_text(int(stored.sum())), ""
        each = f"{size_text(stored.mean())} each, on average" * (len(stored) > 1)
    yield "Shards", f"{len(dataset.stored.shards):,}", each


def _splits(dataset: Dataset) -> Iterator[Section]:
    """Yields tables of splits and of editions, if there are several."""
    only = dataset.stored.only
    splits = only.manifest.splits if only and only.manifest else {}
    if len(splits) > 1:
        rows = [[name, *_stored(split)] for name, split in sorted(splits.items())]
        yield _table("Splits", (["Split", 0], *_STORED), rows)
    split = only.committed if only else None
    if split is not None and split.last_edition > 1:
        kept = sorted(split.known.keys() - {*split.numbers})
        rows = [
            [
                number,
                *_stored(split.known[number]),
                made_by(split, number) + ", replaced since" * (number in kept),
            ]
            for number in (*split.numbers, *kept)
        ]
        yield _table("Editions", (["Edition", 1], *_STORED, ["Made by", 0]), rows)


def _stored(split: Split) -> list[Any]:
    sizes = map(size_text, (split.raw_bytes, split.file_bytes))
    return [split.records, split.shards, *sizes]


def _shards(dataset: Dataset) -> Iterator[Section]:
    count, sizes = len(dataset.stored.shards), dataset.stored.shards.file_bytes
    if count < 2:
        return
    rows = []
    for number in range(min(count, _LISTED)):
        info = dataset.shard(number)
        size = "" if info.file_bytes is None else size_text(info.file_bytes)
        rows.append([number, info.first_record, info.records, size, info.path])
    columns = (["Shard", 1], ["First record", 1], ["Records", 1], ["Stored", 1])
    yield _table("Shards", (*columns, ["File", 0]), rows, of=count)
    if count > len(rows) and (sizes >= 0).all():
        yield _chart(histogram(sizes, count, "shard", "Sizes of shards", size_text))


def _chart(chart: dict[str, Any]) -> Section:
    return {"title": "", "chart": chart}


def _lengths(dataset: Dataset) -> Iterator[Section]:
    """Yields the chart of the sizes of records, or of the lengths of documents.

    It reads all records of a small dataset, and a sample of a large one.
    """
    counts = dataset.stored.packed
    try:
        if counts is None and len(dataset):
            sizes = np.fromiter(map(len, _some_records(dataset)), np.int64)
            title = "Sizes of records"
            yield _chart(histogram(sizes, len(dataset), "record", title, size_text))
        elif counts is not None and counts.documents:
            lengths = _document_tokens(dataset)
            title = "Lengths of documents"
            yield _chart(
                histogram(lengths, counts.documents, "document", title, _tokens)
            )
    except (GristmillError, OSError) as e:
        # The rest of the page remains useful.
        yield {"title": "Sizes", "facts": [["not known", str(e)]]}


def _tokens(count: float) -> str:
    return plural(round(count), "token")


def histogram(
    values: IntArray, of: int, thing: str, title: str, text: Callable[[float], str]
) -> dict[str, Any]:
    """Returns the chart of a histogram with growing ranges.

    Args:
        values: int64 [n], at least one, none negative.
        of: Number of all values, if these are a sample.
        thing: The noun for what has a value.
        title: The title.
        text: Returns a value as text.

    Returns:
        `title`, `summary`, `top`, the greatest count as text, `bars` as [count, text],
        and `ticks` as [share of the width, text].
    """
    low, high = int(values.min()), int(values.max())
    grown = np.rint(np.geomspace(max(low, 1), high + 1, _BINS + 1))
    edges = np.unique([low, *grown, high + 1]).astype(np.int64)
    counts = np.diff(np.searchsorted(np.sort(values), edges)).tolist()
    shown = [text(edge) for edge in edges.tolist()]
    which = f"all {plural(of, thing)}"
    if len(values) < of:
        which = f"a sample of {len(values):,} of {plural(of, thing)}"
    return {
        "title": title,
        "summary": f"From {text(low)} to {text(high)}, {text(float(values.mean()))} on "
        f"average: {which}.",
        "top": plural(max(counts), thing),
        "bars": [
            [count, f"{begin} to {end}: {plural(count, thing)}"]
            for count, (begin, end) in zip(
                counts, itertools.pairwise(shown), strict=True
            )
        ],
        "ticks": [
            [share, shown[round(share * (len(shown) - 1))]]
            for share in (0, 0.25, 0.5, 0.75, 1)
        ],
    }


def _some_records(dataset: Dataset) -> Iterator[bytes]:
    """Yields all records of a small dataset, or some from places all over it."""
    count, mean = len(dataset), dataset.facts.mean_record_bytes
    # Files without a description do not have the sizes of records.
    most = _PLACES if mean is None else max(1, int(_SAMPLE_BYTES / max(mean, 1)))
    run = min(_PLACE_RECORDS, max(1, most // _PLACES))
    numbers = np.arange(count)
    if count > min(most, _PLACES * _PLACE_RECORDS):
        starts = np.linspace(0, count - run, min(most, _PLACES, count // run))
        numbers = np.unique(starts.astype(np.int64)[:, np.newaxis] + np.arange(run))
    for some in np.array_split(numbers, -(-len(numbers) // _PLACE_RECORDS)):
        yield from dataset.read(some)


def _document_tokens(dataset: Dataset) -> IntArray:
    """Returns the lengths of documents that end in rows, or in a sample of rows."""
    chance = np.random.default_rng(0)
    filled = np.flatnonzero(np.diff(dataset.stored.shards.ends, prepend=0)).tolist()
    found = []
    for number in filled[:: -(-len(filled) // _SAMPLED_SHARDS)]:
        shard = PackedShard(dataset.stored, number)
        index = shard.segments
        pieces = np.diff(index.row_ends, prepend=0)
        read = np.sort(chance.permutation(len(pieces))[:_SAMPLED_ROWS])
        is_read = np.isin(np.repeat(np.arange(len(pieces)), pieces), read)
        ends = index.piece_firsts.astype(np.int64)
        ends[is_read] += shard.lengths(read)
        order = np.lexsort((index.piece_firsts, index.piece_documents))
        owners = index.piece_documents[order].astype(np.int64)
        last = order[np.diff(owners, append=-1) != 0]
        found.append(ends[last[is_read[last]]])
    return np.concatenate(found)


def _sources(found: Sequence[tuple[Part, Split]]) -> Iterator[Section]:
    """Yields the files that the records of each edition come from."""
    rows: list[list[str]] = []
    total = 0
    for part, edition in found:
        files = read_sources(part.path, edition) or ()
        total += len(files)
        rows += [
            [file.path, file.format, size_text(file.size_bytes) * bool(file.size_bytes)]
            for file in itertools.islice(files, _LISTED - len(rows))
        ]
    if rows:
        names = (["File", 0], ["Format", 0], ["Size", 1])
        yield _table("Source files", names, rows, of=total)


def _contents(
    dataset: Dataset, found: Sequence[tuple[Part, Split]]
) -> Iterator[Section]:
    facts = [
        [head, line]
        for part, edition in found
        for head, lines in fact_pairs(split_facts(edition, part.path))
        for line in lines
        if head not in _IN_TILES
    ]
    if (digest := dataset.facts.records_digest) is not None:
        facts.append(["digest", digest])
    if facts:
        yield {"title": "Facts", "facts": facts}
    if features := dataset.features:
        some = itertools.islice(features.items(), _LISTED)
        rows = [[name, feature_text(spec)] for name, spec in some]
        yield _table("Features", (["Name", 0], ["Type", 0]), rows, of=len(features))


def _table(
    title: str, columns: Sequence[Any], rows: Sequence[Any], *, of: int = 0
) -> Section:
    more = f"And {of - len(rows):,} more." if of > len(rows) else ""
    return {"title": title, "columns": columns, "rows": rows, "more": more}


_VALUES, _NUMBERS = 32, 256
_CHARACTERS, _BYTES, _TOKENS = 20_000, 512, 16_384
_PREVIEW_TOKENS, _PREVIEW_CHARACTERS = 32, 80
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
# Images that pages show without running anything in them; SVG is text.
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
}


def shown(
    dataset: Dataset,
    number: int,
    *,
    name: str | None = None,
    texts: Tokenizer | None = None,
    image_bytes: int,
) -> dict[str, Any]:
    """Returns a record as JSON values, or the error if it cannot be read.

    Args:
        dataset: Its dataset.
        number: Its number there.
        name: The dataset's name in a mixture.
        texts: Shows tokens of packed rows as text; None for ids alone.
        image_bytes: Maximum size of an image.
    """
    try:
        return _shown(dataset, number, name, texts, image_bytes)
    except GristmillError as e:
        return {"error": [[head, str(text)] for head, text in e.facts().items()]}
    except OSError as e:
        return {"error": [["what", e.strerror or str(e)], ["where", str(e.filename)]]}


def _shown(
    dataset: Dataset,
    number: int,
    name: str | None,
    texts: Tokenizer | None,
    image_bytes: int,
) -> dict[str, Any]:
    (data,) = dataset.read([number])
    location = locate_record(dataset, number, name=name)
    bare = dataclasses.asdict(dataclasses.replace(location, pieces=()))
    del bare["pieces"]
    found = {
        "bytes": len(data),
        "place": _pairs(place_facts(bare)),
        "source": _source(location),
    }
    (shard,) = dataset.find([number])[0].tolist()
    part, own = dataset.stored.part_of(shard)
    packed = packed_of(part, own)
    if packed is None:
        fields = [*_fields(data, image_bytes)]
        texts_in = (one["shown"][0] for one in fields if one["kind"] == "text")
        text = max(texts_in, key=len, default="")
        return found | {"fields": fields, "preview": _line(text)}
    row_format = RowFormat(packed.length, packed.id_bytes, packed.rows)
    pieces = [*_pieces(data, row_format, location, texts)]
    first = pieces[0]["tokens"][:_PREVIEW_TOKENS] if pieces else []
    told = "".join(text if text is not None else f"{token} " for token, text in first)
    return found | {"pieces": pieces, "length": packed.length, "preview": _line(told)}


def _line(text: str) -> str:
    return " ".join(text[: 16 * _PREVIEW_CHARACTERS].split())[:_PREVIEW_CHARACTERS]


def _source(found: Location) -> str:
    """Returns the source of a record as a line; for a row that of its first piece."""
    first, more = next(iter(found.pieces), found), len(found.pieces) - 1
    text = ", ".join(text for _, text in _source_facts(first))
    return f"{text}, and {more:,} more" if more > 0 else text


def _source_facts(place: SourcePlace) -> list[list[str]]:
    return _pairs(source_facts(dataclasses.asdict(place)))


def _pairs(facts: dict[str, Any]) -> list[list[str]]:
    """Returns facts for the page, as lines with a head or none."""
    return [
        ["" if number else head, line]
        for head, lines in fact_pairs(facts)
        for number, line in enumerate(lines)
    ]


def _pieces(
    data: bytes, row_format: RowFormat, location: Location, texts: Tokenizer | None
) -> Iterator[dict[str, Any]]:
    """Yields the pieces of a packed row: tokens, spans of messages, and sources."""
    row = decode_rows(row_format, [data])
    for number, piece in enumerate(location.pieces):
        end = min(piece.end_token, _TOKENS)
        ids: list[int] = row.tokens[piece.begin_token : end].tolist()
        known = [None] * len(ids) if texts is None else texts.texts(ids)
        yield {
            "begin": piece.begin_token,
            "end": piece.end_token,
            "document": piece.document,
            "first": piece.first_token,
            "source": _source_facts(piece),
            "tokens": [*zip(ids, known, strict=True)],
            "spans": row.spans and [*row.spans.of_document(number)],
        }


def _fields(record: bytes, image_bytes: int) -> Iterator[dict[str, Any]]:
    """Yields the features of a `tf.train.Example`, or one field of another record."""
    for name, values in sorted(features_of(record).items()) or [("", [record])]:
        kind, shown, cut = _values(values, image_bytes)
        cut = _more(len(values) - len(shown), "value") or cut
        found = {"values": len(values), "kind": kind, "shown": shown, "cut": cut}
        yield {"name": name, **found}


def _values(values: Values, image_bytes: int) -> tuple[str, list[Any], str | None]:
    """Returns the kind of values, some as JSON, and a note on those left out."""
    some = [value for value in values[:_VALUES] if isinstance(value, bytes)]
    longest = max(map(len, some), default=0)
    if not some:
        return "numbers", [_number(value) for value in values[:_NUMBERS]], None
    if all(types := [_image_type(value) for value in some]):
        if longest > image_bytes:
            return "image", [None] * len(some), "large images; --records has them"
        coded = [base64.b64encode(value).decode() for value in some]
        named = zip(types, coded, strict=True)
        urls = [f"data:image/{kind};base64,{data}" for kind, data in named]
        return "image", urls, None
    try:
        texts = [value.decode() for value in some]
    except UnicodeDecodeError:
        texts = []
    # Control characters such as zeros: numbers, or a binary format.
    if not texts or any(map(_CONTROLS.search, texts)):
        cut = _more(longest - _BYTES, "byte")
        return "bytes", [value[:_BYTES].hex(" ") for value in some], cut
    cut = _more(max(map(len, texts)) - _CHARACTERS, "character")
    return "text", [text[:_CHARACTERS] for text in texts], cut


def _more(count: int, thing: str) -> str | None:
    return plural(count, f"more {thing}") if count > 0 else None


def _number(value: Any) -> Any:
    """Returns a number, as text if JSON or JavaScript would change it."""
    exact = abs(value) <= 1 << 53 if isinstance(value, int) else np.isfinite(value)
    return value if exact else str(value)


def _image_type(value: bytes) -> str | None:
    for magic, kind in _IMAGES.items():
        if value.startswith(magic):
            return kind
    return "webp" if value[:4] == b"RIFF" and value[8:12] == b"WEBP" else None
