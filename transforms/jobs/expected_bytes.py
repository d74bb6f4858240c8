"""The size of a split, expected of one that was converted in the same way."""

from __future__ import annotations

from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.jobs.prepared_job import PreparedJob

_FRAME_BYTES = 16  # Of a TFRecord, besides the record.
_OPTIONS = ("writer", "map", "map_code_digest")  # They decide the size.


def expected_bytes(prepared: PreparedJob, replaced: Split | None) -> int | None:
    """Returns the least size that the shards of a job should have, None if unknown.

    It is known from a split that was converted in the same way. Compressed inputs hold
    more than their size.
    """
    if replaced is None:
        return None
    source, options = replaced.source, prepared.job.options()
    try:
        alike = all(source["options"][name] == options[name] for name in _OPTIONS)
        input_bytes = source["raw_bytes"] + _FRAME_BYTES * source["records"]
        ratio = replaced.file_bytes / input_bytes
    except (KeyError, TypeError, ZeroDivisionError):
        return None  # It was not converted, or is empty.
    return int(ratio * int(prepared.files.sizes.sum())) if alike else None
