"""Whether a worker will be silent for long while it writes large records.

The official writer holds the interpreter's lock while it compresses a chunk: no other
thread of the process runs, also none that answers a runner.
`benchmarks/harness_silence.py` measures that.
"""

from __future__ import annotations

import numpy as np

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.formats.tfrecord.frames import HEADER_BYTES, is_header
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.input_files import InputFiles

_LONG_SECONDS = 5.0
# CPU seconds for a megabyte of text, from which level on. On the machine of
# docs/prepare/engines.md; others differ by a small factor.
_SECONDS_A_MEGABYTE = {
    "zstd": ((20, 0.65), (18, 0.5), (16, 0.4), (13, 0.25), (10, 0.05), (5, 0.02)),
    "brotli": ((11, 1.8), (10, 1.1), (8, 0.18), (5, 0.05)),
}
_FAST_SECONDS_A_MEGABYTE = 0.005


def silence_notes(writer: WriterOptions, files: InputFiles) -> list[str]:
    """Returns a note for the user if a chunk will take seconds to compress.

    Reads the size of one record: the first of the first file that is not compressed.

    Args:
        writer: How shards are encoded.
        files: The inputs.
    """
    record_bytes = _first_record_bytes(files)
    seconds = writer.group_size * record_bytes / 1e6 * _seconds_a_megabyte(writer)
    if writer.writer != "official" or seconds < _LONG_SECONDS:
        return []
    records = f"{writer.group_size} records" if writer.group_size > 1 else "a record"
    return [
        f"{writer.compression} takes about {seconds:,.0f} s for {records} of "
        f"{record_bytes / 1e6:,.0f} MB, in which a worker does not answer its runner. "
        "The default writer lets it answer; a lower level is faster"
    ]


def _seconds_a_megabyte(writer: WriterOptions) -> float:
    name, _, level = writer.compression.partition(":")
    for least, seconds in _SECONDS_A_MEGABYTE.get(name, ()):
        if int(level) >= least:
            return seconds
    return _FAST_SECONDS_A_MEGABYTE


def _first_record_bytes(files: InputFiles) -> int:
    """Returns the size that the first frame claims, 0 if there is none to see."""
    for place in np.flatnonzero(files.splittable)[:1].tolist():
        path = files.paths[place]
        head = storage_for(path).read(path, 0, HEADER_BYTES)
        if is_header(head):
            return int.from_bytes(head[:8], "little")
    return 0
