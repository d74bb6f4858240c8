"""`dataset.json`, which makes a directory a dataset, and the tables that it names."""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from gristmill.dataset.base.errors import (
    FormatVersionError,
    InputError,
    InvalidDatasetError,
    NotADatasetError,
    ReplacedError,
    StorageError,
    some_of,
)
from gristmill.dataset.formats.file_formats import HEAD_BYTES, FileFormat, format_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import LIST
from gristmill.dataset.metadata.shard_table import ShardTable, read_described
from gristmill.dataset.metadata.splits import (
    TOTALS,
    Split,
    encode_split,
    parse_split,
)
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.dataset.storage.paths import StrPath, near_paths, path_text

FORMAT = "gristmill.dataset"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `dataset.json`.

    Attributes:
        name: The dataset's name, part of its file names.
        splits: Splits by name.
        features: The schema, where known: `features.json` as TFDS writes it.
        created_by: The version of gristmill that wrote it.
        spent: Ids of writes that were given up, or whose editions are kept no longer:
            their files are garbage, and no write has such an id again.
        extra: Fields that this version does not know. They survive a rewrite.
    """

    name: str
    splits: Mapping[str, Split]
    features: Mapping[str, Any] | None = None
    created_by: str = ""
    spent: frozenset[str] = frozenset()
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
        """All editions of all splits, by `layout.write_key`: at least one of each."""
        return {
            layout.write_key(name, part.write): part
            for name, split in self.splits.items()
            for part in split.parts
        }

    @property
    def known(self) -> dict[str, Split]:
        """The same, and the editions of the states that splits have replaced."""
        return {
            layout.write_key(name, part.write): part
            for name, split in self.splits.items()
            for part in split.known.values()
        }

    def find(self, key: str) -> Split | None:
        """Returns a split, or an edition by `layout.write_key`; or None."""
        return self.splits.get(key) or self.editions.get(key)

    @property
    def _totals(self) -> dict[str, int]:
        """Sums over all splits, for readers of the file without gristmill."""
        splits = self.splits.values()
        return {name: sum(getattr(s, name) for s in splits) for name in TOTALS[:3]}

    def encode(self) -> bytes:
        """Returns the text of `dataset.json`."""
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            **self._totals,
            "content_digest": self.content_digest,
            "splits": {name: encode_split(one) for name, one in self.splits.items()},
            "features": self.features,
            "created_by": self.created_by,
            **({"spent": sorted(self.spent)} if self.spent else {}),
            **self.extra,
        }
        text = json.dumps(document, indent=2, ensure_ascii=False)
        # File names can hold bytes that are not UTF-8, which Python keeps as lone
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
        if type(got) is not int or got != FORMAT_VERSION:
            raise FormatVersionError.unknown(
                "dataset", where=where, expected=FORMAT_VERSION, got=got
            )
        try:
            splits = {
                layout.check_split(name): parse_split(fields)
                for name, fields in document["splits"].items()
            }
            features = document.get("features")
            manifest = cls(
                name=layout.check_name(document["name"]),
                splits=splits,
                features=None if features is None else dict(features),
                created_by=str(document.get("created_by", "")),
                spent=frozenset(map(str, document.get("spent", ()))),
                extra={n: document[n] for n in document if n not in _DOCUMENT_FIELDS},
            )
        except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as e:
            raise invalid("dataset.json lacks a field, or has a bad one", got=e) from e
        if not splits and not manifest.spent:
            raise invalid("dataset.json has no split, and no write was given up")
        for name, split in splits.items():
            for part in split.known.values():
                layout.check_relative(part.table, where=f"{where}, split {name}")
        sums = {"content_digest": manifest.content_digest, **manifest._totals}
        for name, own in sums.items():
            if document.get(name) != own:
                raise invalid(
                    f"the {name} of dataset.json does not fit its splits",
                    expected=document.get(name),
                    got=own,
                )
        return manifest


NO_DATASET = Manifest(name="", splits={})
"""In the place of a `dataset.json` that is not there, or cannot be read."""


def is_over(manifest: Manifest, key: str) -> bool:
    """Returns whether a write is committed or given up.

    Args:
        manifest: The dataset.
        key: The `layout.write_key` of the write.
    """
    split, mark = layout.parse_write_key(key)
    there = manifest.splits.get(split)
    if not mark:
        return there is not None
    return mark in manifest.spent or (there is not None and mark in there.writes)


_DOCUMENT_FIELDS = {
    *("format", "format_version", "name", "records", "raw_bytes", "file_bytes"),
    *("content_digest", "splits", "features", "created_by", "spent"),
}


def read_manifest(dataset: StrPath) -> Manifest | None:
    """Returns the manifest of a dataset's directory, None if nothing is committed."""
    manifest, _ = read_versioned_manifest(path_text(dataset, "dataset"))
    return manifest if manifest.splits else None


def read_versioned_manifest(dataset: str) -> tuple[Manifest, str]:
    """Returns the manifest and the version of the file; `NO_DATASET` and "" for none.

    It has no split if all work was given up.

    A writer names that version as the one to replace, so that changes by others are not
    lost.
    """
    path = layout.join(dataset, layout.DATASET_JSON)
    found = storage_for(dataset).load(path)
    if found is None:
        return NO_DATASET, ""
    return Manifest.decode(found.data, where=path), found.version


def read_replaced_manifest(dataset: str) -> tuple[Manifest, str]:
    """Returns the same for a writer that replaces an unreadable `dataset.json`.

    The manifest is then `NO_DATASET`.
    """
    # Asked first: if another writer comes in between, its file has another version.
    path = layout.join(dataset, layout.DATASET_JSON)
    version = version_of(path)
    try:
        return read_versioned_manifest(dataset)
    except InvalidDatasetError:
        return NO_DATASET, version


def check_not_replaced(dataset: str, name: str, split: Split) -> None:
    """Checks that the dataset still has the files of a split.

    There may be later editions by now, beside which this one is kept.

    Raises:
        ReplacedError: Another edition has replaced it, and its files will be deleted.
    """
    manifest, _ = read_versioned_manifest(dataset)
    only, _ = layout.parse_write_key(name)
    found = manifest.splits.get(only)
    known = {} if found is None else found.known
    for part in split.parts:
        there = known.get(part.edition)
        if there is None or there.shards_digest != part.shards_digest:
            raise ReplacedError(
                "dataset was replaced while it was in use",
                where=f"{dataset}, split {only}",
                expected=f"edition {part.edition:,}, {part.shards_digest}",
                got=_instead(found, there),
                cure="open the dataset again: it has the new records",
            )


def _instead(found: Split | None, there: Split | None) -> str:
    """Returns the state of a split that lacks an edition, in words."""
    if found is None:
        return "no such split any more"
    if there is not None:
        return f"edition {there.edition:,}, {there.shards_digest}"
    editions = ", ".join(f"{number:,}" for number in found.numbers)
    version = found.parts[-1].source.get("gristmill_version")
    return f"edition {editions}" + (f", made by gristmill {version}" if version else "")


def read_split_table(dataset: str, manifest: Manifest, name: str) -> ShardTable:
    """Reads the table of a split of a committed dataset.

    The name can be the `layout.write_key` of one edition.

    Raises:
        InvalidDatasetError: It is damaged.
        ReplacedError: The split was replaced meanwhile.
    """
    split = {**manifest.known, **manifest.splits}[name]
    try:
        return read_table(dataset, split)
    except (InvalidDatasetError, StorageError):
        check_not_replaced(dataset, name, split)  # That would explain it.
        raise


def read_table(dataset: StrPath, split: Split) -> ShardTable:
    """Reads the table of shards of a split and compares it with the manifest.

    If there are several editions, it has the shards of all, in order. The spans of a
    shard count the input files of its edition.

    Raises:
        InvalidDatasetError: It is not the table that the manifest describes, or it has
            a path that leaves the dataset or occurs twice.
    """
    tables = [_read_table(dataset, part) for part in split.parts]
    table = tables[0] if len(tables) == 1 else ShardTable.joined(tables)
    table.check_paths(where=layout.join(path_text(dataset, "dataset"), split.table))
    return table


def _read_table(dataset: StrPath, split: Split) -> ShardTable:
    path = layout.join(path_text(dataset, "dataset"), split.table)
    cure = "restore it from a copy, or run the conversion again with --overwrite"
    sums = split.table_bytes, split.table_crc32c
    data = read_described(path, *sums, what="table of shards", cure=cure)
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


_CURE = (
    "check the path; `gristmill convert` writes a dataset from files, `gristmill "
    "index` turns existing ArrayRecord files into one"
)
_TFDS_CURE = (
    "convert it with `gristmill convert`, or, if its files are ArrayRecord files, make "
    "it a dataset in place with `gristmill index`"
)


def open_manifest(dataset: StrPath) -> Manifest:
    """Returns the manifest of a committed dataset.

    Raises:
        NotADatasetError: The directory has none: it is not a dataset, or its conversion
            did not finish.
    """
    dataset = path_text(dataset, "dataset")
    manifest = read_manifest(dataset)
    if manifest is None:
        raise not_a_dataset(dataset)
    return manifest


# Not data: the package datasets writes these beside its files.
_OF_HUGGING_FACE = ("dataset_dict.json", layout.TFDS_INFO_JSON, "state.json")


def not_a_dataset(path: str) -> NotADatasetError:
    """Returns the error for a path without a `dataset.json`."""
    if "://" not in path and not os.path.lexists(path):
        near = some_of(near_paths(path))
        return NotADatasetError(
            "not a committed dataset",
            where=path,
            got="there is no such directory",
            cure=f"check the path; there is {near}" if near else _CURE,
        )
    storage = storage_for(path)
    got, cure = "none", _CURE
    if storage.stat(layout.join(path, layout.DATASET_JSON)) is not None:
        got = "one that names no split: what was begun was given up"
    elif (file := storage.stat(path)) is not None:
        found = _format(file)
        got = "a file" if found is None else f"a file: {found.name}"
        cure = "give a directory" if found is None else found.cure
    elif begun := files_of_index(path):
        got, cure = _begun(begun, path)
    elif datasets := _datasets_in(path):
        got, cure = f"a folder of {some_of(datasets)}", "give one of the datasets in it"
    else:
        files = {layout.base_name(info.path): info for info in storage.list(path)}
        shown = [name for name in files if not name.startswith((".", "_"))]
        shown = [name for name in shown if name not in _OF_HUGGING_FACE]
        if {layout.TFDS_INFO_JSON, "features.json"}.issubset(files):
            got, cure = "a TFDS directory", _TFDS_CURE
        elif shown and (found := _format(files[shown[0]])) is not None:
            got = f"files such as {shown[0]}: {found.name}"
            cure = found.cure
    return NotADatasetError(
        "not a committed dataset",
        where=path,
        expected=f"a file {layout.DATASET_JSON}, which is written last",
        got=got,
        cure=cure,
    )


def files_of_index(dataset: str) -> list[str]:
    """Returns the files that describe shards or jobs, relative to the dataset."""
    own = layout.join(dataset, "")
    listed = storage_for(dataset).list(layout.join(dataset, layout.INDEX_DIR))
    paths = [info.path.removeprefix(own) for info in listed]
    kinds = (layout.INDEX, *layout.DESCRIBING)
    return [path for path in paths if any(kind.parse(path) for kind in kinds)]


def _begun(described: Sequence[str], dataset: str) -> tuple[str, str]:
    """Returns the state of a directory with such files, and the cure."""
    lists = map(LIST.parse, described)
    if any(one and one["LIST"].startswith("part-") for one in lists):
        return (
            "a split that is not committed",
            "run the program that writes it again, a Writer with resume=True; where it "
            "writes several parts, commit them with gristmill.dataset.commit_parts",
        )
    if any(map(layout.JOB.parse, described)):
        return (
            "an unfinished conversion",
            "run the same `gristmill convert`, or other command, again: it does what "
            "is missing; if that was refused, gristmill clean --unfinished deletes "
            "what is there",
        )
    return (
        f"what describes shards, such as {described[0]}, without a dataset.json",
        "restore that from a copy, or make the dataset again; to read the shards as "
        f"plain files, give {layout.join(dataset, '*array_record*')}",
    )


def _datasets_in(path: str) -> list[str]:
    """Returns the datasets in a local folder; listing a bucket would take long."""
    pattern = layout.join(glob.escape(path), "*", layout.DATASET_JSON)
    local = "://" not in path
    found = storage_for(path).match(pattern) if local else []
    return [os.path.dirname(info.path) for info in found]


def _format(file: FileInfo) -> FileFormat | None:
    if not file.size_bytes:
        return None  # A pipe, for example, would keep its reader waiting.
    try:
        return format_of(storage_for(file.path).read(file.path, 0, HEAD_BYTES))
    except StorageError:
        return None  # The error is about the dataset, not about this file.


def chosen_split(split: str | None, splits: Collection[str], where: str) -> str:
    """Returns the name of a split, by default of the only one; raises InputError."""
    if split is None and len(splits) == 1:
        return next(iter(splits))
    if split is None or split not in splits:
        raise InputError(
            "no split given" if split is None else "no such split",
            where=where,
            expected=f"one of {some_of(sorted(splits), 20)}" if splits else "(none)",
            got=split,
            cure="give one of these as --split",
        )
    return split


def states_of(split: Split) -> dict[int, Split]:
    """Returns the states of a split that are known, by their newest edition."""
    found = {}
    for edition in sorted(split.known):
        try:
            found[edition] = split.until(edition)
        except IndexError:
            continue  # It was never the newest edition of a kept state.
    return found


def state_of(dataset: str, split: Split, edition: int) -> Split:
    """Returns a split as it was when an edition was its newest; raises InputError."""
    states = states_of(split)
    if edition not in states:
        raise InputError(
            "no state of the split is known that ended with this edition",
            where=dataset,
            expected=f"edition {some_of(map(str, states), 20)}",
            got=f"edition {edition}",
            cure="choose one of these; `gristmill inspect` shows what they hold",
        )
    return states[edition]
