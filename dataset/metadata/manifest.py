"""`dataset.json`: the file that makes a directory a dataset."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

from gristmill.dataset.base.errors import (
    FormatVersionError,
    InvalidDatasetError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.splits import (
    Split,
    encode_splits,
    mapping_or_none,
    merge_extra,
    parse_splits,
    unknown_fields,
)

FORMAT = "gristmill.dataset"
FORMAT_VERSION = 1
EDITIONS_VERSION = 2  # The version for a dataset with a split of several editions.
EXCHANGE = "exchange"  # A field of earlier releases.
NUMBERS_VERSION = 3  # For editions that were replaced, or renumbered.


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

    @property
    def editions(self) -> dict[str, Split]:
        """All editions of all splits, by `layout.edition_key`: at least one of each."""
        return {
            layout.edition_key(name, part.edition): part
            for name, split in self.splits.items()
            for part in split.parts
        }

    @property
    def known(self) -> dict[str, Split]:
        """The same, and the editions of the states that splits have replaced."""
        return {
            layout.edition_key(name, number): part
            for name, split in self.splits.items()
            for number, part in split.known.items()
        }

    def find(self, key: str) -> Split | None:
        """Returns a split, or an edition by `layout.edition_key`; or None."""
        return self.splits.get(key) or self.editions.get(key)

    @property
    def version(self) -> int:
        """The version of the format that can express it."""
        return max(map(_version_of, self.splits.values()), default=FORMAT_VERSION)

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
        text = json.dumps(merge_extra(document), indent=2, ensure_ascii=False)
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
        if type(got) is not int or not FORMAT_VERSION <= got <= NUMBERS_VERSION:
            raise FormatVersionError.unknown(
                "dataset", where=where, expected=NUMBERS_VERSION, got=got
            )
        if document.get(EXCHANGE) is not None:
            raise invalid(
                "a split was being replaced by an earlier release of gristmill, which "
                "moved files, and was stopped",
                cure="run that command again with the release that began it; or "
                "convert the split again with --overwrite",
            )
        try:
            splits = parse_splits(document["splits"])
            manifest = cls(
                name=layout.check_name(document["name"]),
                splits=splits,
                features=mapping_or_none(document.get("features"), "features"),
                created_by=str(document.get("created_by", "")),
                extra=unknown_fields(document, _DOCUMENT_FIELDS),
            )
        except (TypeError, KeyError, ValueError, AttributeError) as e:
            raise invalid("dataset.json lacks a field, or has a bad one", got=e) from e
        if not splits:
            raise invalid("dataset.json has no split")
        if got < manifest.version:
            raise invalid(
                f"dataset.json of version {got} has a split with editions as of "
                f"version {manifest.version}"
            )
        for name, split in splits.items():
            for part in split.known.values():
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


def _version_of(split: Split) -> int:
    """Returns the version of the format that can express a split."""
    numbered = range(1, len(split.parts) + 1)
    if (
        split.numbers != tuple(numbered)
        or split.last_edition > len(numbered)
        or split.replaced
        or any(part.removed is not None for part in split.parts)
    ):
        return NUMBERS_VERSION
    return EDITIONS_VERSION if split.editions else FORMAT_VERSION


_DOCUMENT_FIELDS = {
    *("format", "format_version", "name", "records", "raw_bytes", "file_bytes"),
    *("content_digest", "splits", "features", "created_by", EXCHANGE),
}
