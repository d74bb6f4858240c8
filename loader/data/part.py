"""One of the splits that a dataset joins, as its directory describes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.metadata.column_table import common_columns
from gristmill.dataset.metadata.features import FeatureSpec, described_features
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Part:
    """One of the splits that a dataset joins, or its plain files.

    Attributes:
        path: The directory, or the first of plain files.
        name: Its name in messages.
        shards: Number of shards.
        split: The split; None for plain files.
        edition: The newest edition that it holds, None if it has none.
        manifest: What `dataset.json` says, up to its edition; None without one.
        table: The table of its shards, None without one.
    """

    path: str
    name: str
    shards: int
    split: str | None = None
    edition: int | None = None
    manifest: Manifest | None = None
    table: ShardTable | None = None

    def __repr__(self) -> str:
        return f"<Dataset {self.name}>"

    @property
    def committed(self) -> Split | None:
        """The split in `dataset.json`, None without one."""
        if self.manifest is None or self.split is None:
            return None
        return self.manifest.splits[self.split]

    @property
    def editions(self) -> tuple[Split, ...]:
        """The editions that it holds, in the order of their records."""
        return () if (split := self.committed) is None else split.parts

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
