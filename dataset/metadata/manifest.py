"""`dataset.json`: the file that makes a directory a dataset."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, Self

from gristmill.dataset.errors import (
    FormatVersionError,
    InvalidDatasetError,
    StorageChangedError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.splits import (
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
