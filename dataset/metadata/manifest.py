"""`dataset.json`: the file that makes a directory a dataset."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Self

import google_crc32c

from gristmill.dataset.errors import (
    FormatVersionError,
    InvalidDatasetError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.no_dataset import not_a_dataset
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import StrPath, path_text

FORMAT = "gristmill.dataset"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """One split of a dataset, as `dataset.json` has it.

    Attributes:
        shards: Number of shards.
        records: Number of records.
        raw_bytes: Size of the records.
        file_bytes: Size of the shards.
        records_digest: Order-independent digest of all records, 32 hex digits.
        shards_digest: SHA-256 over names and contents of all shards, in order.
        table: The table of shards, relative to the dataset.
        table_bytes: Its size.
        table_crc32c: Its checksum.
        writer_options: Options of the official writer.
        source: Where the data came from: patterns, file list digest, options, version.
        dropped_records: Records for which the user's function returned nothing.
        added_records: Records that it returned beyond one for each.
        quarantined_regions: Damaged regions of the inputs that were set aside.
        quarantined_bytes: Their size.
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
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

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
        totals: dict[str, Any] = {name: table.total(name) for name in _TOTALS}
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
class Manifest:
    """The content of `dataset.json`.

    Attributes:
        name: The dataset's name, part of its file names.
        splits: Splits by name.
        features: The schema, where known: `features.json` as TFDS writes it.
        created_by: The version of gristmill that wrote it.
        extra: Fields that this version does not know. They survive a rewrite.
    """

    name: str
    splits: Mapping[str, Split]
    features: Mapping[str, Any] | None = None
    created_by: str = ""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def content_digest(self) -> str:
        """SHA-256 over name, order and content of all shards of all splits."""
        lines = [
            f"{name} {split.records} {split.records_digest} {split.shards_digest}\n"
            for name, split in sorted(self.splits.items())
        ]
        return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()

    def encode(self) -> bytes:
        """Returns the text of `dataset.json`."""
        splits = {
            name: _merge(dataclasses.asdict(split))
            for name, split in self.splits.items()
        }
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "records": sum(split.records for split in self.splits.values()),
            "raw_bytes": sum(split.raw_bytes for split in self.splits.values()),
            "file_bytes": sum(split.file_bytes for split in self.splits.values()),
            "content_digest": self.content_digest,
            "splits": splits,
            "features": self.features,
            "created_by": self.created_by,
            "extra": dict(self.extra),
        }
        text = json.dumps(_merge(document), indent=2, ensure_ascii=False)
        # Names of files can hold bytes that are not UTF-8, which Python keeps as lone
        # surrogates: written as JSON escapes, so that any JSON reader accepts them.
        return text.encode("utf-8", "backslashreplace") + b"\n"

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> Self:
        """Parses the text of `dataset.json`.

        Raises:
            InvalidDatasetError: It is damaged, or contradicts itself.
            FormatVersionError: Its version is unknown.
        """
        invalid = functools.partial(
            InvalidDatasetError,
            where=where,
            cure="restore the file from a copy, or run the conversion again with "
            "--overwrite",
        )
        try:
            document = json.loads(data.decode())
        except (ValueError, RecursionError) as e:
            raise invalid("dataset.json is not JSON", got=str(e)) from e
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise invalid("dataset.json is not one of gristmill's", expected=FORMAT)
        if document.get("format_version") != FORMAT_VERSION:
            got = document.get("format_version")
            raise FormatVersionError.unknown(
                "dataset", where=where, expected=FORMAT_VERSION, got=got
            )
        try:
            splits = {
                layout.check_split(name): _parse_split(fields)
                for name, fields in document["splits"].items()
            }
            manifest = cls(
                name=layout.check_name(document["name"]),
                splits=splits,
                features=_mapping(document.get("features"), "features"),
                created_by=str(document.get("created_by", "")),
                extra=_unknown(document, _DOCUMENT_FIELDS),
            )
        except (TypeError, KeyError, ValueError, AttributeError) as e:
            raise invalid("dataset.json lacks a field, or has a bad one", got=e) from e
        if not splits:
            raise invalid("dataset.json has no split")
        for name, split in splits.items():
            layout.check_relative(split.table, where=f"{where}, split {name}")
        for total in ("records", "raw_bytes", "file_bytes"):
            added = sum(getattr(split, total) for split in splits.values())
            if document.get(total) != added:
                raise invalid(
                    f"the splits' {total} do not add up",
                    expected=document.get(total),
                    got=added,
                )
        if document.get("content_digest") != manifest.content_digest:
            raise invalid(
                "content digest does not fit the splits",
                expected=document.get("content_digest"),
                got=manifest.content_digest,
            )
        return manifest


_DOCUMENT_FIELDS = {
    *("format", "format_version", "name", "records", "raw_bytes", "file_bytes"),
    *("content_digest", "splits", "features", "created_by"),
}
# Fields of a split that add up a column of its table.
_TOTALS = (
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
    if field.name != "extra"
}


def _merge(fields: dict[str, Any]) -> dict[str, Any]:
    extra: Mapping[str, Any] = fields.pop("extra")
    return fields | dict(extra)


def _mapping(value: Any, name: str) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {value!r}")
    return value


def _unknown(fields: Mapping[str, Any], known: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in known}


def _parse_split(fields: Mapping[str, Any]) -> Split:
    known = {name: fields[name] for name in fields if name in _SPLIT_FIELDS}
    for name, value in known.items():
        kind = _SPLIT_FIELDS[name]
        if kind == "int" and (type(value) is not int or not 0 <= value < 1 << 62):
            raise ValueError(f"{name} must be a count, got {value!r}")
        if kind == "str" and not isinstance(value, str):
            raise ValueError(f"{name} must be a text, got {value!r}")
        if name in _DIGESTS and not re.fullmatch(_DIGESTS[name], value):
            raise ValueError(f"{name} is not a digest, got {value!a}")
    if _mapping(fields["source"], "source") is None:
        raise ValueError("source must be an object, got null")
    return Split(**known, extra=_unknown(fields, _SPLIT_FIELDS))


def read_manifest(dataset: StrPath) -> Manifest | None:
    """Returns the manifest of a dataset's directory, None if there is none."""
    return read_versioned_manifest(path_text(dataset, "dataset"))[0]


def read_versioned_manifest(dataset: str) -> tuple[Manifest | None, str]:
    """Returns the manifest or None, and the version of `dataset.json`, "" for none.

    A writer of a changed manifest names that version as the one to replace, so that
    changes by others are not lost.
    """
    path = layout.join(dataset, layout.DATASET_JSON)
    found = storage_for(dataset).load(path)
    if found is None:
        return None, ""
    return Manifest.decode(found.data, where=path), found.version


def open_manifest(dataset: StrPath) -> Manifest:
    """Returns the manifest of a committed dataset.

    Raises:
        NotADatasetError: The directory holds none: it is no dataset, or its
            conversion did not finish.
    """
    dataset = path_text(dataset, "dataset")
    manifest = read_manifest(dataset)
    if manifest is None:
        raise not_a_dataset(dataset)
    return manifest


def read_table(dataset: StrPath, split: Split) -> ShardTable:
    """Reads the table of shards of a split and compares it with the manifest.

    Raises:
        InvalidDatasetError: It is not the table that the manifest describes.
    """
    path = layout.join(path_text(dataset, "dataset"), split.table)
    data = storage_for(path).read(path)
    got = google_crc32c.value(data)
    if (len(data), got) != (split.table_bytes, split.table_crc32c):
        raise InvalidDatasetError(
            "table of shards is not the one that dataset.json describes",
            where=path,
            expected=f"{split.table_bytes:,} bytes, crc32c {split.table_crc32c:#010x}",
            got=f"{len(data):,} bytes, crc32c {got:#010x}",
            cure="restore it from a copy, or run the conversion again with --overwrite",
        )
    table = ShardTable.decode(data, where=path)
    found: dict[str, Any] = {name: table.total(name) for name in _TOTALS}
    found |= {
        "shards": len(table),
        "records_digest": table.digest().hex,
        "shards_digest": table.shards_digest,
    }
    described = {name: getattr(split, name) for name in found}
    if found != described:
        wrong = [name for name in found if found[name] != described[name]]
        raise InvalidDatasetError(
            "table of shards contradicts dataset.json",
            where=path,
            expected=", ".join(f"{name} {described[name]}" for name in wrong),
            got=", ".join(f"{name} {found[name]}" for name in wrong),
            cure="restore both from a copy, or run the conversion again with "
            "--overwrite",
        )
    return table
