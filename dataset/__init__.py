"""The on-disk contract that writers and readers share: formats, names, checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.dataset.arrayrecord.writer_options import WriterOptions
    from gristmill.dataset.base.digest import RecordsDigest
    from gristmill.dataset.base.errors import (
        CorruptFrameError,
        CorruptInputError,
        CorruptRecordError,
        CorruptShardError,
        CorruptStreamError,
        DataLossError,
        DecodeError,
        FastTokenizerDiffersError,
        FormatVersionError,
        GristmillError,
        InputError,
        InvalidDatasetError,
        JobChangedError,
        JobError,
        MissingPackageError,
        NotADatasetError,
        OutOfRangeError,
        RecordKeyError,
        ReplacedError,
        RowError,
        StateMismatchError,
        StorageChangedError,
        StorageError,
        StorageMissingError,
        SystemLimitError,
        TransposedChunkError,
        UserFunctionError,
        WorkerDiedError,
    )
    from gristmill.dataset.base.example import encode_example
    from gristmill.dataset.formats.tfrecord_frames import encode_frame
    from gristmill.dataset.metadata.features import FeatureSpec
    from gristmill.dataset.metadata.manifest import (
        Manifest,
        open_manifest,
        read_manifest,
        read_table,
    )
    from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
    from gristmill.dataset.metadata.shard_table import ShardTable
    from gristmill.dataset.metadata.splits import Split
    from gristmill.dataset.packed.counts import PackedCounts
    from gristmill.dataset.writer.column_writer import ColumnWriter, commit_columns
    from gristmill.dataset.writer.parts import commit_parts
    from gristmill.dataset.writer.writer import Writer

__all__ = [
    "ColumnWriter",
    "CorruptFrameError",
    "CorruptInputError",
    "CorruptRecordError",
    "CorruptShardError",
    "CorruptStreamError",
    "DataLossError",
    "DecodeError",
    "FastTokenizerDiffersError",
    "FeatureSpec",
    "FormatVersionError",
    "GristmillError",
    "InputError",
    "InvalidDatasetError",
    "JobChangedError",
    "JobError",
    "Manifest",
    "MissingPackageError",
    "NotADatasetError",
    "OutOfRangeError",
    "PackedCounts",
    "RecordKeyError",
    "RecordsDigest",
    "ReplacedError",
    "RowError",
    "ShardReport",
    "ShardTable",
    "SourceSpan",
    "Split",
    "StateMismatchError",
    "StorageChangedError",
    "StorageError",
    "StorageMissingError",
    "SystemLimitError",
    "TransposedChunkError",
    "UserFunctionError",
    "WorkerDiedError",
    "Writer",
    "WriterOptions",
    "commit_columns",
    "commit_parts",
    "encode_example",
    "encode_frame",
    "open_manifest",
    "read_manifest",
    "read_table",
]

# Imported when first used: errors alone need no NumPy.
__getattr__, __dir__ = lazy_names(__name__)
