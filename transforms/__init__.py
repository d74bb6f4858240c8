"""Beam transforms, with the types of their options and results.

They are imported on first access, as workers of a conversion without Beam import
modules of this package too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.dataset.arrayrecord.writer_options import WriterOptions
    from gristmill.dataset.base.findings import Finding
    from gristmill.transforms.beam.job_transforms import (
        ConvertFiles,
        IndexArrayRecords,
        VerifyDataset,
    )
    from gristmill.transforms.beam.read_ranges import SourceRecord
    from gristmill.transforms.beam.read_records import (
        ReadAllRecords,
        ReadArrayRecords,
        ReadRecords,
        ReadTFRecords,
    )
    from gristmill.transforms.beam.write_arrayrecords import WriteArrayRecords
    from gristmill.transforms.checking.verification import VerifyResult
    from gristmill.transforms.conversion.commit_shards import ConversionResult
    from gristmill.transforms.jobs.conversion_job import (
        ConversionJob,
        ShardNames,
    )
    from gristmill.transforms.jobs.pack_options import (
        ChatOptions,
        PackOptions,
        TemplateSpec,
        TokenizerSpec,
    )
    from gristmill.transforms.planning.shard_plan import PlanOptions
    from gristmill.transforms.sources.formats import RecordOptions
    from gristmill.transforms.writing.write_split import WriteResult

__all__ = [
    "ChatOptions",
    "ConversionJob",
    "ConversionResult",
    "ConvertFiles",
    "Finding",
    "IndexArrayRecords",
    "PackOptions",
    "PlanOptions",
    "ReadAllRecords",
    "ReadArrayRecords",
    "ReadRecords",
    "ReadTFRecords",
    "RecordOptions",
    "ShardNames",
    "SourceRecord",
    "TemplateSpec",
    "TokenizerSpec",
    "VerifyDataset",
    "VerifyResult",
    "WriteArrayRecords",
    "WriteResult",
    "WriterOptions",
]

__getattr__, __dir__ = lazy_names(__name__)
