"""The splits of a dataset in `dataset.json`, and what replaces them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import google_crc32c

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import joined_descriptions
from gristmill.dataset.metadata.layout import COLUMN
from gristmill.dataset.metadata.shard_table import ShardTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """One split of a dataset, as `dataset.json` has it.

    Attributes:
        shards: Number of shards.
        records: Number of records.
        raw_bytes: Size of the records.
        file_bytes: Size of the shards.
        records_digest: Order-independent digest of all records, 32 hex digits.
        shards_digest: SHA-256 over names and contents of all shards, in order; if there
            are several editions, over their digests.
        table: The table of shards, relative to the dataset.
        table_bytes: Size of that file.
        table_crc32c: Checksum of that file.
        writer_options: How the shards are encoded, see `WriterOptions.described`.
        source: The origin of the data: patterns, file list digest, options, version.
        dropped_records: Records for which the user's function returned nothing.
        added_records: Records that it returned beyond one each.
        skipped_regions: Damaged regions of the inputs that were left out.
        skipped_bytes: Their size.
        features: The features of the records, as `features.encode_features` describes
            them; None if not known.
        packed: Layout and totals of the records if they are packed rows, else None. See
            docs/reference/format.md.
        editions: The editions in the order of their records, if there is more than one.
            Table, writer options and source of this split are then those of the first,
            and its features those that hold for all, or None.
        edition: The number of the edition, never reused within the split; the highest
            if there are several.
        replaced: Earlier states of the split that are kept, in the order in which they
            were replaced, each without such states of its own.
        last_edition: The highest number ever given to an edition.
        removed: For an edition made by removing records from another one: that
            edition's number, what was removed, and where it is listed; see
            docs/reference/format.md. Otherwise None.
        columns: The columns beside the records of an edition, by name, as
            `column_table.ColumnEntry` describes them; none of several editions.
        write: The id of the write that made an edition, 16 hex digits, which is in the
            names of its files; "" where these have TFDS's plain names.
        extra: Fields that this version does not know. They survive a rewrite.
    """

    shards: int
    records: int
    raw_bytes: int
    file_bytes: int
    records_digest: str
    shards_digest: str
    table: str
    table_bytes: int
    table_crc32c: int
    writer_options: str
    source: Mapping[str, Any]
    dropped_records: int = 0
    added_records: int = 0
    skipped_regions: int = 0
    skipped_bytes: int = 0
    features: Mapping[str, Any] | None = None
    packed: Mapping[str, Any] | None = None
    editions: tuple[Split, ...] = ()
    edition: int = 1
    replaced: tuple[Split, ...] = ()
    last_edition: int = 0
    removed: Mapping[str, Any] | None = None
    columns: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    write: str = ""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        newest = max([part.edition for part in self.editions], default=self.edition)
        last = max([newest, *(state.last_edition for state in self.replaced)])
        object.__setattr__(self, "edition", newest)
        object.__setattr__(self, "last_edition", max(last, self.last_edition))

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of what made it; none of files that were indexed in place."""
        options: Mapping[str, Any] = self.source.get("options", {})
        return options

    @property
    def function(self) -> str | None:
        """The user's function that made its records, None if none did."""
        return self.options.get("map")

    @property
    def alone(self) -> Split:
        """The split without the states that it replaced."""
        return dataclasses.replace(self, replaced=(), last_edition=0)

    @property
    def writer_parts(self) -> int | None:
        """The number of parts that a `Writer` wrote it in, None for another split."""
        parts = self.source.get("parts")
        return parts if type(parts) is int else None

    @property
    def parts(self) -> tuple[Split, ...]:
        """The editions, each as a split of its own: at least one."""
        return self.editions or (self.alone,)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the editions, in the order of their records."""
        return tuple(part.edition for part in self.parts)

    @property
    def writes(self) -> frozenset[str]:
        """The ids of the writes of its editions, also of replaced ones, and columns."""
        known = self.known.values()
        made = {part.source.get("job") for part in known}
        tables = (entry.get("table") for p in known for entry in p.columns.values())
        found = (COLUMN.parse(str(table)) for table in tables)
        made |= {parts["KEY"] for parts in found if parts}
        return frozenset(one for one in made if isinstance(one, str))

    @property
    def known(self) -> dict[int, Split]:
        """All editions by their numbers: also those of the states that it replaced."""
        states = *self.replaced, self
        return {part.edition: part for state in states for part in state.parts}

    @property
    def origin(self) -> int:
        """The edition that its records came with, before some of them were removed."""
        removed, origin = self.removed, self.edition
        while removed is not None:
            origin, removed = removed["edition"], removed.get("before")
        return origin

    def part(self, edition: int) -> Split:
        """Returns one of the editions; raises IndexError for an unknown number."""
        return self.parts[self.place(edition)]

    def place(self, edition: int) -> int:
        """Returns the number of editions before one; raises as `part` does."""
        if edition not in self.numbers:
            raise IndexError(edition)
        return self.numbers.index(edition)

    def removals(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yields what was removed on the way to this edition, the last first.

        Each is the number of the edition that it was removed from, and its `removed`.
        """
        removed = self.removed
        while isinstance(removed, Mapping):
            yield removed["edition"], removed
            removed = removed.get("before")

    def until(self, edition: int) -> Split:
        """Returns the split as it was when an edition was the newest.

        Raises IndexError if no such edition is known.
        """
        for state in (self, *reversed(self.replaced)):
            newest = [*itertools.accumulate(state.numbers, max)]
            if edition == newest[-1]:
                return state
            if edition in newest:
                # Later editions are newer, or it would not be the newest.
                count = len(newest) - newest[::-1].index(edition)
                # Unless one change made both, from earlier editions.
                if all(part.origin > edition for part in state.parts[count:]):
                    return Split.of_editions(state.parts[:count])
        raise IndexError(edition)

    def edition_of(self, shard: int) -> int:
        """Returns the edition of a shard, given its number in the split."""
        ends = itertools.accumulate(part.shards for part in self.parts)
        return self.numbers[sum(shard >= end for end in ends)]

    @classmethod
    def of_editions(
        cls, editions: Sequence[Split], *, extra: Mapping[str, Any] | None = None
    ) -> Split:
        """Returns the split of these editions, in order; a single one as it is."""
        editions = tuple(one.alone for one in editions)
        if len(editions) == 1 and not extra:
            return editions[0]
        digests = [
            RecordsDigest(
                low=int(one.records_digest[16:], 16),
                high=int(one.records_digest[:16], 16),
            )
            for one in editions
        ]
        lines = "".join(f"{one.shards_digest}\n" for one in editions)
        totals = {
            name: sum(getattr(one, name) for one in editions)
            for name in ("shards", *TOTALS)
        }
        first = editions[0]
        return dataclasses.replace(
            first,
            features=joined_descriptions([one.features for one in editions]),
            records_digest=RecordsDigest.total(digests).hex,
            shards_digest="sha256:" + hashlib.sha256(lines.encode()).hexdigest(),
            editions=editions,
            removed=None,
            columns={},
            write="",
            extra=extra or {},
            **totals,
        )

    @classmethod
    def of_table(
        cls,
        table: ShardTable,
        encoded: bytes,
        *,
        path: str,
        writer_options: str,
        source: Mapping[str, Any],
        edition: int = 1,
        write: str = "",
    ) -> Self:
        """Describes an edition by its table and the table's encoded form."""
        totals: dict[str, Any] = {name: table.total(name) for name in TOTALS}
        return cls(
            shards=len(table),
            records_digest=table.digest().hex,
            shards_digest=table.shards_digest,
            table=path,
            table_bytes=len(encoded),
            table_crc32c=google_crc32c.value(encoded),
            writer_options=writer_options,
            source=source,
            edition=edition,
            write=write,
            **totals,
        )


# Fields of a split that are sums of a column of its table.
TOTALS = (
    *("records", "raw_bytes", "file_bytes", "dropped_records", "added_records"),
    *("skipped_regions", "skipped_bytes"),
)
_DIGESTS = {
    "records_digest": "[0-9a-f]{32}",
    "shards_digest": "sha256:[0-9a-f]{64}",
}
# Fields for the order of editions, written only if needed.
_HISTORY = ("editions", "edition", "replaced", "last_edition", "removed")
_SPLIT_FIELDS = {
    field.name: field.type
    for field in dataclasses.fields(Split)
    if field.name not in (*_HISTORY, "extra")
}
# Fields that each of several editions has, but their split does not.
_EDITION_FIELDS = (
    *("table", "table_bytes", "table_crc32c", "writer_options", "source", "features"),
    "packed",
    "columns",
    "write",
)


def merge_extra(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns fields with those in `extra` among them."""
    extra: Mapping[str, Any] = fields.pop("extra")
    return fields | dict(extra)


def mapping_or_none(value: Any, name: str) -> Mapping[str, Any] | None:
    """Returns a JSON object or null; raises ValueError for anything else."""
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {value!r}")
    return value


def unknown_fields(fields: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """Returns the unknown fields, to be kept."""
    return {name: value for name, value in fields.items() if name not in known}


def encode_splits(splits: Mapping[str, Split]) -> dict[str, Any]:
    """Returns splits as JSON objects, by name."""
    return {name: _encode_split(split) for name, split in splits.items()}


def _encode_split(split: Split, position: int = 1) -> dict[str, Any]:
    fields = dataclasses.asdict(dataclasses.replace(split, editions=(), replaced=()))
    for name in _HISTORY:
        del fields[name]
    if not split.editions and split.edition != position:
        fields["edition"] = split.edition
    if split.removed is not None:
        fields["removed"] = dict(split.removed)
    if split.replaced:
        fields["replaced"] = [_encode_split(state) for state in split.replaced]
    if split.last_edition > max(split.known):
        fields["last_edition"] = split.last_edition
    for name in ("features", "packed"):
        if fields[name] is None:
            del fields[name]
    for name in ("columns", "write"):
        if not fields[name]:
            del fields[name]
    if split.editions:
        for name in _EDITION_FIELDS:
            fields.pop(name, None)
        fields["editions"] = [
            _encode_split(one, position)
            for position, one in enumerate(split.editions, 1)
        ]
    return merge_extra(fields)


def parse_splits(fields: Mapping[str, Any]) -> dict[str, Split]:
    """Parses such objects; raises a builtin error of any kind if they are invalid."""
    return {
        layout.check_split(name): _parse_split(split) for name, split in fields.items()
    }


def _parse_split(fields: Mapping[str, Any]) -> Split:
    split = _parse_state(fields)
    replaced, last = fields.get("replaced", []), fields.get("last_edition", 0)
    if not isinstance(replaced, list) or type(last) is not int:
        raise ValueError("replaced must be a list, and last_edition a count")
    states = tuple(map(_parse_state, replaced))
    split = dataclasses.replace(split, replaced=states, last_edition=last)
    known = split.known
    for state in (*states, split):
        for part in state.parts:
            if part != known[part.edition]:
                raise ValueError(f"edition {part.edition} is described in two ways")
    if len({part.write for part in known.values()}) != len(known):
        raise ValueError("two editions of a split have files of the same names")
    return split


def _parse_state(fields: Mapping[str, Any]) -> Split:
    if "editions" in fields:
        return _parse_editions(fields)
    return _parse_edition(fields, 1)


def _parse_edition(fields: Mapping[str, Any], position: int) -> Split:
    known = {name: fields[name] for name in fields if name in _SPLIT_FIELDS}
    known |= {name: fields[name] for name in TOTALS}
    for name, value in known.items():
        kind = _SPLIT_FIELDS[name]
        if kind == "int" and (type(value) is not int or not 0 <= value < 1 << 62):
            raise ValueError(f"{name} must be a count, got {value!r}")
        if kind == "str" and not isinstance(value, str):
            raise ValueError(f"{name} must be a text, got {value!r}")
        if name in _DIGESTS and not re.fullmatch(_DIGESTS[name], value):
            raise ValueError(f"{name} is not a digest, got {value!a}")
    source = mapping_or_none(fields["source"], "source")
    if source is None or not isinstance(source.get("options", {}), dict):
        raise ValueError("source and its options must be objects")
    for name in ("features", "packed"):
        mapping_or_none(fields.get(name), name)
    columns = mapping_or_none(fields.get("columns", {}), "columns")
    if columns is None or not all(isinstance(c, dict) for c in columns.values()):
        raise ValueError("columns must be objects by name")
    removed = mapping_or_none(fields.get("removed"), "removed")
    while removed is not None:
        if type(removed["edition"]) is not int:
            raise ValueError(f"removed names no edition, but {removed['edition']!r}")
        removed = mapping_or_none(removed.get("before"), "before")
    edition = fields.get("edition", position)
    if type(edition) is not int or not 1 <= edition < 10**9:
        raise ValueError(f"edition must be a number from 1 on, got {edition!r}")
    return Split(
        **known,
        edition=edition,
        removed=fields.get("removed"),
        extra=unknown_fields(fields, {*_SPLIT_FIELDS, *_HISTORY}),
    )


def _parse_editions(fields: Mapping[str, Any]) -> Split:
    editions = fields["editions"]
    if not isinstance(editions, list) or len(editions) < 2:
        raise ValueError("editions must be a list of two or more")
    for one in editions:
        if not isinstance(one, dict) or "editions" in one:
            raise ValueError(f"not an edition: {one!a:.100}")
    own = {name: _SPLIT_FIELDS[name] for name in _SPLIT_FIELDS.keys() - _EDITION_FIELDS}
    extra = unknown_fields(fields, {*own, *_HISTORY})
    split = Split.of_editions(
        [_parse_edition(one, place) for place, one in enumerate(editions, 1)],
        extra=extra,
    )
    if len({*split.numbers}) != len(editions):
        raise ValueError("two editions of a split have the same number")
    for name in own:
        if fields[name] != getattr(split, name):
            raise ValueError(f"{name} of a split is not that of its editions")
    return split
