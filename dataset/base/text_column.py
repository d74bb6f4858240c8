"""A column of texts: one UTF-8 blob, and the end of each text in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def encode_texts(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint8], Int64]:
    """Returns texts as uint8 [bytes] and int64 [texts], the end of each."""
    if isinstance(texts, Texts):  # A million texts need not be decoded.
        return texts.encoded
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    return np.frombuffer(b"".join(encoded), np.uint8), ends.astype("<i8")


class Texts(Sequence[str]):
    """Texts, decoded on access."""

    def __init__(self, blob: npt.NDArray[np.uint8], ends: Int64):
        self._blob = blob.tobytes()
        self._ends = ends

    @property
    def encoded(self) -> tuple[npt.NDArray[np.uint8], Int64]:
        """The texts as `encode_texts` returns them."""
        return np.frombuffer(self._blob, np.uint8), self._ends

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Self:
        """Returns the texts of one or more columns, in order."""
        lengths = [np.diff(part._ends, prepend=0) for part in parts]
        ends = np.cumsum(np.concatenate(lengths)).astype("<i8")
        blob = b"".join(part._blob for part in parts)
        return cls(np.frombuffer(blob, np.uint8), ends)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        begin = int(self._ends[index - 1]) if index else 0
        text = self._blob[begin : int(self._ends[index])]
        return text.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for begin, end in itertools.pairwise([0, *self._ends.tolist()]):
            yield self._blob[begin:end].decode("utf-8", "surrogateescape")
