"""Documents of Megatron: tokens in a `.bin`, and their lengths in the `.idx` beside it.

Source: `megatron/core/datasets/indexed_dataset.py` of Megatron-LM.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.token_files.token_documents import (
    Layout,
    TokenSource,
    damaged,
    in_range,
    list_beside,
    plain_options,
)

_MAGIC = b"MMIDIDX\0\0"
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_HEADER_BYTES = 34


class MegatronSource(TokenSource):
    """Files of Megatron; the index of each has all of its documents."""

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for documents."""
        plain_options(options, "Megatron's")
        beside = list_beside(map(_beside, files.paths), "the index of Megatron")
        return SourceSpec(format="megatron", schema=beside)

    def layout(self, file: InputFile, begin: int, end: int) -> Layout:
        """Returns the documents that begin in a range."""
        dtype, places = self._index(_beside(file.path), file.size_bytes)
        decode = functools.partial(np.frombuffer, dtype=dtype)
        return in_range(places, begin, end, decode)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - Sources are few, and kept.
    def _index(
        self, beside: str, size_bytes: int
    ) -> tuple[np.dtype[np.generic], npt.NDArray[np.int64]]:
        """Returns the type of the ids of a `.bin`, and where its documents begin."""
        data = self.read_beside(beside)
        try:
            if data[:9] != _MAGIC or data[9:17] != b"\1" + bytes(7):
                raise ValueError("no index of version 1")  # noqa: TRY301
            dtype = np.dtype(_TYPES[data[17]])
            sequences, bounds = np.frombuffer(data, "<u8", 2, 18).tolist()
            lengths = np.frombuffer(data, "<i4", sequences, _HEADER_BYTES)
            at = _HEADER_BYTES + 4 * sequences
            pointers = np.frombuffer(data, "<i8", sequences, at)
            documents = np.frombuffer(data, "<i8", bounds, at + 8 * sequences)
            ends = np.append(0, np.cumsum(lengths, dtype=np.int64) * dtype.itemsize)
            whole = bounds and documents[0] == 0 and documents[-1] == sequences
            if not whole or (np.diff(documents) < 0).any() or (lengths < 0).any():
                raise ValueError("documents that do not follow one another")  # noqa: TRY301
            if not np.array_equal(pointers, ends[:-1]) or ends[-1] != size_bytes:
                expected = f"{int(ends[-1]):,} bytes of tokens, one after the other"
                raise ValueError(f"{expected}, in a file of {size_bytes:,}")  # noqa: TRY301
        except (ValueError, KeyError, IndexError) as error:
            raise damaged(beside, 0, str(error)) from error
        return dtype, ends[documents]


def _beside(path: str) -> str:
    return path.removesuffix(".bin") + ".idx"
