"""`dataset.json`: the file that makes a directory a dataset."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

import google_crc32c

from gristmill.dataset.errors import (
    FormatVersionError,
    InvalidDatasetError,
    NotADatasetError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.no_dataset import not_a_dataset
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import (
    TOTALS,
    Exchange,
    Split,
    encode_exchange,
    encode_splits,
    mapping_or_none,
    merge_extra,
    parse_exchange,
    parse_splits,
    unknown_fields,
)
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.dataset.storage.paths import StrPath, path_text

FORMAT = "gristmill.dataset"
FORMAT_VERSION = 1
EDITIONS_VERSION = 2  # Of a dataset with a split of several editions.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `dataset.json`.

    Attributes:
        name: The dataset's name, part of its file names.
        splits: Splits by name.
        features: The schema, where known: `features.json` as TFDS writes it.
        created_by: The version of gristmill that wrote it.
        exchange: What is left to do until splits are replaced, None for nothing.
        extra: Fields that this version does not know. They survive a rewrite.
    """

    name: str
    splits: Mapping[str, Split]
    features: Mapping[str, Any] | None = None
    created_by: str = ""
    exchange: Exchange | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def content_digest(self) -> str:
        """SHA-256 over name, order and content of all shards of all splits."""
        lines = [
            f"{name} {split.records} {split.records_digest} {split.shards_digest}\n"
            for name, split in sorted(self.splits.items())
        ]
        return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def editions(self) -> dict[str, Split]:
        """All editions of all splits, by `layout.edition_key`: one and more of each."""
        return {
            layout.edition_key(name, number): part
            for name, split in self.splits.items()
            for number, part in enumerate(split.parts, 1)
        }

    def find(self, key: str) -> Split | None:
        """Returns a split, or an edition by `layout.edition_key`; None for neither."""
        return self.splits.get(key) or self.editions.get(key)

    def with_splits(
        self, made: Mapping[str, Split], *, anew: Collection[str] = ()
    ) -> dict[str, Split]:
        """Returns the splits with others that were made, by `layout.edition_key`.

        A split without a number takes the place of the whole split of its name; but
        what the job of the first edition has made again takes the place of that one.

        Args:
            made: The splits.
            anew: Those that replace a whole split in any case.

        Raises:
            StorageChangedError: An edition cannot be the next one any more.
        """
        splits = dict(self.splits)
        for key, split in made.items():
            name, number = layout.parse_edition_key(key)
            parts = splits[name].parts if name in splits.keys() - {*anew} else ()
            again = len(parts) >= number and _is_same(parts[number - 1], split)
            if again:
                parts = (*parts[: number - 1], split, *parts[number:])
            elif number == 1:
                parts = (split,)
            elif number == len(parts) + 1:
                parts = (*parts, split)
            else:
                raise StorageChangedError(
                    "another command has changed the split while this one ran",
                    where=f"split {name}",
                    expected=f"{number - 1:,} editions",
                    got=f"{len(parts):,}",
                    cure="run this command again: it appends a later edition",
                )
            splits[name] = Split.of_editions(parts)
        return splits

    @property
    def replacing(self) -> frozenset[str]:
        """Splits that cannot be read until their new files are in their places."""
        if self.exchange is None or not self.exchange.splits:
            return frozenset()
        return frozenset(self.exchange.aside)

    @property
    def version(self) -> int:
        """The version of the format that can express it."""
        exchange = self.exchange or Exchange(aside=())
        for splits in (self.splits, exchange.splits, exchange.replaced):
            if any(split.editions for split in splits.values()):
                return EDITIONS_VERSION
        return FORMAT_VERSION

    def encode(self) -> bytes:
        """Returns the text of `dataset.json`."""
        document = {
            "format": FORMAT,
            "format_version": self.version,
            "name": self.name,
            "records": sum(split.records for split in self.splits.values()),
            "raw_bytes": sum(split.raw_bytes for split in self.splits.values()),
            "file_bytes": sum(split.file_bytes for split in self.splits.values()),
            "content_digest": self.content_digest,
            "splits": encode_splits(self.splits),
            "features": self.features,
            "created_by": self.created_by,
            "extra": dict(self.extra),
        }
        if self.exchange is not None:
            document["exchange"] = encode_exchange(self.exchange)
        text = json.dumps(merge_extra(document), indent=2, ensure_ascii=False)
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
        got = document.get("format_version")
        if got not in (FORMAT_VERSION, EDITIONS_VERSION):
            raise FormatVersionError.unknown(
                "dataset", where=where, expected=EDITIONS_VERSION, got=got
            )
        try:
            splits = parse_splits(document["splits"])
            manifest = cls(
                name=layout.check_name(document["name"]),
                splits=splits,
                features=mapping_or_none(document.get("features"), "features"),
                created_by=str(document.get("created_by", "")),
                exchange=parse_exchange(document.get("exchange")),
                extra=unknown_fields(document, _DOCUMENT_FIELDS),
            )
        except (TypeError, KeyError, ValueError, AttributeError) as e:
            raise invalid("dataset.json lacks a field, or has a bad one", got=e) from e
        if not (splits or manifest.replacing):
            raise invalid("dataset.json has no split")
        if got == FORMAT_VERSION != manifest.version:
            raise invalid(f"dataset.json of version {got} has a split with editions")
        coming = {} if manifest.exchange is None else manifest.exchange.splits
        for name, split in (*splits.items(), *coming.items()):
            for part in split.parts:
                layout.check_relative(part.table, where=f"{where}, split {name}")
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


def _is_same(split: Split, other: Split) -> bool:
    """Tells whether the same job or write made two splits."""
    own, others = (
        [one.source.get(name) for name in ("job", "write")] for one in (split, other)
    )
    return own == others != [None, None]


_DOCUMENT_FIELDS = {
    *("format", "format_version", "name", "records", "raw_bytes", "file_bytes"),
    *("content_digest", "splits", "features", "created_by", "exchange"),
}


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


def read_replaced_manifest(dataset: str) -> tuple[Manifest | None, str]:
    """Does the same for a writer that replaces a `dataset.json` that cannot be read.

    Returns None instead of the manifest then.
    """
    # First: if another writer comes between, its file has another version.
    version = version_of(layout.join(dataset, layout.DATASET_JSON))
    try:
        return read_versioned_manifest(dataset)
    except InvalidDatasetError:
        return None, version


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
    if not manifest.splits:
        check_in_place(dataset, manifest)
    return manifest


def check_in_place(
    dataset: str, manifest: Manifest, splits: Iterable[str] | None = None
) -> None:
    """Checks that no split is being replaced at this moment.

    Args:
        dataset: The dataset's directory.
        manifest: What its `dataset.json` says.
        splits: Those to check; by default all.

    Raises:
        NotADatasetError: One is: its files are neither all old nor all new.
    """
    wanted = manifest.replacing if splits is None else manifest.replacing & {*splits}
    if wanted:
        raise NotADatasetError(
            "a split is being replaced, and cannot be read before that is done",
            where=f"{dataset}, split {', '.join(sorted(wanted))}",
            expected="files of one conversion",
            got="an exchange of the old files for the new ones",
            cure="wait for the command that replaces it; if it was stopped, run it "
            "again: it finishes the exchange, and converts nothing",
        )


def check_not_replaced(dataset: str, name: str, split: Split) -> None:
    """Checks that a split is still the one that was read from `dataset.json`.

    It may have later editions by now.

    Raises:
        InvalidDatasetError: It was replaced since: what is read now belongs to another
            one.
    """
    manifest = read_manifest(dataset)
    found = None if manifest is None else manifest.find(name)
    if found is not None and len(found.parts) > len(split.parts):
        found = found.until(len(split.parts))
    if found is None or found.shards_digest != split.shards_digest:
        raise InvalidDatasetError(
            "dataset was replaced while it was in use",
            where=f"{dataset}, split {name}",
            expected=split.shards_digest,
            got="no such split any more" if found is None else found.shards_digest,
            cure="start again, when the command that replaces it has ended",
        )


def read_split_table(dataset: str, manifest: Manifest, name: str) -> ShardTable:
    """Reads the table of a split of a committed dataset, and checks its paths.

    The name can be the `layout.edition_key` of a single edition.

    Raises:
        InvalidDatasetError: It is damaged, or the split was replaced meanwhile.
    """
    split = {**manifest.editions, **manifest.splits}[name]
    try:
        table = read_table(dataset, split)
    except (InvalidDatasetError, StorageError):
        check_not_replaced(dataset, name, split)  # That would be why.
        raise
    table.check_paths(where=layout.join(dataset, split.table))
    return table


def read_table(dataset: StrPath, split: Split) -> ShardTable:
    """Reads the table of shards of a split and compares it with the manifest.

    Of several editions, it has the shards of all, in order. The spans of a shard count
    the input files of its edition.

    Raises:
        InvalidDatasetError: It is not the table that the manifest describes.
    """
    tables = [_read_table(dataset, part) for part in split.parts]
    return tables[0] if len(tables) == 1 else ShardTable.joined(tables)


def _read_table(dataset: StrPath, split: Split) -> ShardTable:
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
    found: dict[str, Any] = {name: table.total(name) for name in TOTALS}
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
