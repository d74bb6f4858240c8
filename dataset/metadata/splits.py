"""The splits of a dataset as `dataset.json` has them, and what replaces them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import google_crc32c

from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import joined_descriptions
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
        shards_digest: SHA-256 over names and contents of all shards, in order; of
            several editions, over theirs.
        table: The table of shards, relative to the dataset.
        table_bytes: Its size.
        table_crc32c: Its checksum.
        writer_options: Options of the official writer.
        source: Where the data came from: patterns, file list digest, options, version.
        dropped_records: Records for which the user's function returned nothing.
        added_records: Records that it returned beyond one for each.
        quarantined_regions: Damaged regions of the inputs that were set aside.
        quarantined_bytes: Their size.
        features: What the records hold, as `features.encode_features` describes it,
            None if that is not known.
        packed: How the records are packed rows, and what they hold, added up;
            None if they are none. See docs/reference/format.md.
        editions: What was committed one after the other, where that is more than one.
            Table, writer options and source of this split are those of the first then,
            and its features those that hold for all, None if there are none.
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
    quarantined_regions: int = 0
    quarantined_bytes: int = 0
    features: Mapping[str, Any] | None = None
    packed: Mapping[str, Any] | None = None
    editions: tuple[Split, ...] = ()
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def parts(self) -> tuple[Split, ...]:
        """The editions, each as a split of its own: one and more."""
        return self.editions or (self,)

    def until(self, edition: int) -> Split:
        """Returns the split as it was when an edition, counted from 1, was the last."""
        if not 1 <= edition <= len(self.parts):
            raise IndexError(edition)
        if edition == len(self.parts):
            return self
        return Split.of_editions(self.parts[:edition])

    def edition_of(self, shard: int) -> int:
        """Returns the edition of a shard, given its number in the split."""
        ends = itertools.accumulate(part.shards for part in self.parts)
        return 1 + sum(shard >= end for end in ends)

    @classmethod
    def of_editions(
        cls, editions: Sequence[Split], *, extra: Mapping[str, Any] | None = None
    ) -> Split:
        """Returns the split of these editions, in order: of one, the edition itself."""
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
            editions=tuple(editions),
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
    ) -> Self:
        """Describes a split by its table and the table's encoded form."""
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
            **totals,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exchange:
    """New files of splits that take the place of the old ones.

    As long as `dataset.json` has it, whoever writes to the dataset finishes it first.

    Attributes:
        aside: Splits whose new files are in `layout.aside_dir`, or were until a moment
            ago.
        splits: The splits to commit once all files are in their places, by name; none
            if that has been done, and directories are left to delete.
        replaced: The old splits that these replace.
        features: The schema to commit.
        files: Small files that move as well. They are with the first of `aside`.
    """

    aside: tuple[str, ...]
    splits: Mapping[str, Split] = dataclasses.field(default_factory=dict)
    replaced: Mapping[str, Split] = dataclasses.field(default_factory=dict)
    features: Mapping[str, Any] | None = None
    files: tuple[str, ...] = ()


# Fields of a split that add up a column of its table.
TOTALS = (
    *("records", "raw_bytes", "file_bytes", "dropped_records", "added_records"),
    *("quarantined_regions", "quarantined_bytes"),
)
_DIGESTS = {
    "records_digest": "[0-9a-f]{32}",
    "shards_digest": "sha256:[0-9a-f]{64}",
}
_SPLIT_FIELDS = {
    field.name: field.type
    for field in dataclasses.fields(Split)
    if field.name not in ("editions", "extra")
}
# Fields that each of several editions has, and their split has not.
_EDITION_FIELDS = (
    *("table", "table_bytes", "table_crc32c", "writer_options", "source", "features"),
    "packed",
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
    """Returns the fields that are not known, to be kept."""
    return {name: value for name, value in fields.items() if name not in known}


def encode_splits(splits: Mapping[str, Split]) -> dict[str, Any]:
    """Returns splits as JSON objects, by name."""
    return {name: _encode_split(split) for name, split in splits.items()}


def _encode_split(split: Split) -> dict[str, Any]:
    fields = dataclasses.asdict(split)
    del fields["editions"]
    for name in ("features", "packed"):
        if fields[name] is None:
            del fields[name]
    if split.editions:
        for name in _EDITION_FIELDS:
            fields.pop(name, None)
        fields["editions"] = [_encode_split(one) for one in split.editions]
    return merge_extra(fields)


def parse_splits(fields: Mapping[str, Any]) -> dict[str, Split]:
    """Parses such objects; raises an error of any builtin kind if they are bad."""
    return {
        layout.check_split(name): _parse_split(split) for name, split in fields.items()
    }


def encode_exchange(exchange: Exchange) -> dict[str, Any]:
    """Returns an exchange as a JSON object."""
    return dataclasses.asdict(exchange) | {
        "splits": encode_splits(exchange.splits),
        "replaced": encode_splits(exchange.replaced),
    }


def parse_exchange(fields: Any) -> Exchange | None:
    """Parses an exchange, None if there is none, as `parse_splits` does."""
    if mapping_or_none(fields, "exchange") is None:
        return None
    files = tuple(fields["files"])
    for file in files:
        layout.check_shard(file, where=layout.DATASET_JSON)
    aside = tuple(map(layout.check_split, fields["aside"]))
    splits = parse_splits(fields["splits"])
    if not aside or (splits and not splits.keys() >= set(aside)):
        raise ValueError("exchange names other splits than it has")
    return Exchange(
        aside=aside,
        splits=splits,
        replaced=parse_splits(fields["replaced"]),
        features=mapping_or_none(fields["features"], "features"),
        files=files,
    )


def _parse_split(fields: Mapping[str, Any]) -> Split:
    if "editions" in fields:
        return _parse_editions(fields)
    known = {name: fields[name] for name in fields if name in _SPLIT_FIELDS}
    for name, value in known.items():
        kind = _SPLIT_FIELDS[name]
        if kind == "int" and (type(value) is not int or not 0 <= value < 1 << 62):
            raise ValueError(f"{name} must be a count, got {value!r}")
        if kind == "str" and not isinstance(value, str):
            raise ValueError(f"{name} must be a text, got {value!r}")
        if name in _DIGESTS and not re.fullmatch(_DIGESTS[name], value):
            raise ValueError(f"{name} is not a digest, got {value!a}")
    if mapping_or_none(fields["source"], "source") is None:
        raise ValueError("source must be an object, got null")
    for name in ("features", "packed"):
        mapping_or_none(fields.get(name), name)
    return Split(**known, extra=unknown_fields(fields, _SPLIT_FIELDS))


def _parse_editions(fields: Mapping[str, Any]) -> Split:
    editions = fields["editions"]
    if not isinstance(editions, list) or len(editions) < 2:
        raise ValueError("editions must be a list of two or more")
    for one in editions:
        if not isinstance(one, dict) or "editions" in one:
            raise ValueError(f"not an edition: {one!a:.100}")
    own = {name: _SPLIT_FIELDS[name] for name in _SPLIT_FIELDS.keys() - _EDITION_FIELDS}
    extra = unknown_fields(fields, {*own, "editions"})
    split = Split.of_editions([_parse_split(one) for one in editions], extra=extra)
    for name in own:
        if fields[name] != getattr(split, name):
            raise ValueError(f"{name} of a split is not that of its editions")
    return split
