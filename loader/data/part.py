"""One of the splits that a dataset joins, as its directory describes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.metadata.column_table import common_columns
from gristmill.dataset.metadata.features import FeatureSpec, described_features
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.loader.reading.shard_list import ShardList


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Part:
    """One of the splits that a dataset joins, or its plain files.

    Attributes:
        path: The directory, or the first of plain files.
        shards: Its shards.
        split: The split; None for plain files.
        manifest: What `dataset.json` says, up to its edition; None without one.
        table: The table of its shards, None without one.
    """

    path: str
    shards: ShardList
    split: str | None = None
    manifest: Manifest | None = None
    table: ShardTable | None = None

    def __repr__(self) -> str:
        return f"<Dataset {self.shards.name}>"

    @property
    def committed(self) -> Split | None:
        """The split in `dataset.json`, None without one."""
        if self.manifest is None or self.split is None:
            return None
        return self.manifest.splits[self.split]

    @property
    def edition(self) -> int | None:
        """The newest edition that it holds, None if it has none."""
        return None if (split := self.committed) is None else split.edition

    @property
    def editions(self) -> tuple[Split, ...]:
        """The editions that it holds, in the order of their records."""
        return () if (split := self.committed) is None else split.parts

    def shards_of_editions(self) -> Iterator[tuple[Split, range]]:
        """Yields its editions, with the numbers of the shards of each."""
        first = 0
        for split in self.editions:
            yield split, range(first, first := first + split.shards)

    @property
    def features(self) -> Mapping[str, FeatureSpec] | None:
        """The features of its records, None if not known."""
        split, manifest = self.committed, self.manifest
        if split is None or manifest is None:
            return None
        if split.features is None and manifest.features is not None:
            from gristmill.dataset.metadata.tfds import parse_tfds_features

            return parse_tfds_features(manifest.features) or None
        where = f"{self.path}, split {self.split}"
        return described_features(split.features, where=where)

    @property
    def columns(self) -> dict[str, ColumnType]:
        """The types of the columns that all its editions have alike, by name."""
        split = self.committed
        return {} if split is None else common_columns(split, self.path)
