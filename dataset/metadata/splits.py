"""The splits of a dataset in `dataset.json`, and their editions."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import google_crc32c

from gristmill.dataset.base.digest import RecordsDigest
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
        """The options of the job that made it; empty for files indexed in place."""
        options: Mapping[str, Any] = self.source.get("options", {})
        return options

    @property
    def function(self) -> str | None:
        """The user's function that made its records, None if there was none."""
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
        """The ids of the writes of its editions, replaced ones too, and of columns."""
        known = self.known.values()
        made = {part.source.get("job") for part in known}
        tables = (entry.get("table") for p in known for entry in p.columns.values())
        found = (COLUMN.parse(str(table)) for table in tables)
        made |= {parts["KEY"] for parts in found if parts}
        return frozenset(one for one in made if isinstance(one, str))

    @property
    def known(self) -> dict[int, Split]:
        """All editions by number, including those of the states that it replaced."""
        states = *self.replaced, self
        return {part.edition: part for state in states for part in state.parts}

    @property
    def origin(self) -> int:
        """The edition that its records came with, before some of them were removed."""
        return [self.edition, *(number for number, _ in self.removals())][-1]

    def part(self, edition: int) -> Split:
        """Returns one of the editions; raises IndexError for an unknown number."""
        return self.parts[self.place(edition)]

    def place(self, edition: int) -> int:
        """Returns the number of editions before one; raises as `part` does."""
        if edition not in self.numbers:
            raise IndexError(edition)
        return self.numbers.index(edition)

    def removals(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yields the removals that led to this edition, the last first.

        Each is the number of the edition that it was removed from, and its `removed`.
        """
        removed = self.removed
        while removed is not None:
            yield removed["edition"], removed
            removed = removed.get("before")

    def until(self, edition: int) -> Split:
        """Returns the state of the split in which an edition was the newest.

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
            write=write,
            **totals,
        )


# Fields of a split that are sums of a column of its table.
TOTALS = (
    *("records", "raw_bytes", "file_bytes", "dropped_records", "added_records"),
    *("skipped_regions", "skipped_bytes"),
)
_FIELDS = {field.name: field.type for field in dataclasses.fields(Split)}
del _FIELDS["extra"]
_LISTS = ("editions", "replaced")
# Fields that each of several editions has, but their split does not.
_OF_EDITIONS = (
    *("table", "table_bytes", "table_crc32c", "writer_options", "source", "features"),
    *("packed", "edition", "removed", "columns", "write"),
)
# Fields that are written only if there is something to say.
_OPTIONAL = ("removed", "columns", "write", *_LISTS)


def encode_split(split: Split, position: int = 1) -> dict[str, Any]:
    """Returns a split, or the edition at a position, as a JSON object."""
    fields = dict(vars(split))
    extra = fields.pop("extra")
    absent = {name for name in _OPTIONAL if not fields[name]}
    absent |= {name for name in ("features", "packed") if fields[name] is None}
    if split.editions:
        absent |= {*_OF_EDITIONS}
    if split.edition == position:
        absent.add("edition")
    if split.last_edition <= max(split.known):
        absent.add("last_edition")
    for name in _LISTS:
        fields[name] = [encode_split(one, n) for n, one in enumerate(fields[name], 1)]
    return {name: fields[name] for name in fields if name not in absent} | dict(extra)


def _is_removed(value: Any) -> bool:
    return value is None or (
        type(value["edition"]) is int and _is_removed(value.get("before"))
    )


_CHECKS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("a count", lambda value: type(value) is int and 0 <= value < 1 << 62),
    "str": ("a text", lambda value: isinstance(value, str)),
    "Mapping[str, Any] | None": (
        "an object",
        lambda value: value is None or isinstance(value, dict),
    ),
    "tuple[Split, ...]": ("a list", lambda value: isinstance(value, list)),
    "source": (
        "an object, with options",
        lambda value: isinstance(value.get("options", {}), dict),
    ),
    "removed": ("what was removed, and from where", _is_removed),
    "columns": (
        "objects by name",
        lambda value: all(isinstance(one, dict) for one in value.values()),
    ),
}


def parse_split(fields: Mapping[str, Any], position: int = 1) -> Split:
    """Parses such an object; raises a builtin error of any kind if it is none."""
    known = {name: fields[name] for name in fields if name in _FIELDS}
    for name, value in known.items():
        what, fits = _CHECKS.get(name) or _CHECKS[str(_FIELDS[name])]
        good = False
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            good = fits(value)
        if not good:
            raise ValueError(f"{name} must be {what}, got {value!a:.100}")
    extra = {name: fields[name] for name in fields if name not in _FIELDS}
    editions, replaced = (
        tuple(parse_split(one, n) for n, one in enumerate(known.pop(name, ()), 1))
        for name in _LISTS
    )
    if not editions:
        return Split(**{"edition": position, **known}, replaced=replaced, extra=extra)
    split = Split.of_editions(editions, extra=extra)
    if len({*split.numbers}) < len(editions) or any(one.editions for one in editions):
        raise ValueError("editions of a split have one number, or editions, each")
    last = known.pop("last_edition", 0)
    for name in _FIELDS.keys() - {*_OF_EDITIONS, *_LISTS, "last_edition"}:
        if known[name] != getattr(split, name):
            raise ValueError(f"{name} of a split is not that of its editions")
    return dataclasses.replace(split, replaced=replaced, last_edition=last)
