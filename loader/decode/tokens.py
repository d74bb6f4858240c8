"""The decoder of batches of token sequences of one length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import DecodeError, InputError
from gristmill.loader.base.indices import checked_count
from gristmill.loader.decode.features import FixedFeature
from gristmill.loader.decode.scan import scan_examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenDecoder:
    """Decodes a batch of token sequences to an array [records, length].

    Attributes:
        length: Tokens in every record.
        dtype: Type of the array, an integer type.
        stored: Type of the tokens in the records, which are little-endian and end to
            end; `dtype` by default.
        feature: If the records are `tf.train.Example` instead: the name of the int64
            feature that holds the tokens.
    """

    length: int
    dtype: npt.DTypeLike = "int32"
    stored: npt.DTypeLike | None = None
    feature: str | None = None

    def __post_init__(self) -> None:
        checked_count(self.length, what="length")
        stored = self.dtype if self.stored is None else self.stored
        for field, given in (("dtype", self.dtype), ("stored", stored)):
            if np.dtype(given).kind not in "iu":
                raise InputError(
                    f"{field} of tokens is not an integer type",
                    got=np.dtype(given).name,
                    cure="choose one, such as int32 or uint16",
                )
            object.__setattr__(self, field, np.dtype(given))
        if self.feature is not None and np.dtype(stored) != np.dtype(self.dtype):
            raise InputError(
                "stored has no effect on a feature: its integers are int64",
                cure="leave out stored or feature",
            )

    def __call__(self, records: Sequence[bytes]) -> npt.NDArray[Any]:
        """Decodes a batch.

        Raises:
            DecodeError: A record has another size, or a token that `dtype` cannot hold.
        """
        if self.feature is not None:
            described = FixedFeature(self.dtype, shape=(self.length,))
            arrays = described.arrays(self.feature, scan_examples(records))
            found: npt.NDArray[Any] = arrays[self.feature]
            return found
        stored = np.dtype(self.stored).newbyteorder("<")
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        size = self.length * stored.itemsize
        if (sizes != size).any():
            row = int(np.argmax(sizes != size))
            raise DecodeError(
                "record has another number of tokens than length",
                row=row,
                expected=f"{size:,} bytes: {self.length:,} tokens as {stored.name}",
                got=f"{int(sizes[row]):,} bytes",
                cure="correct length and stored; for other lengths use an "
                "ExampleDecoder, or a function of your own",
            )
        # A bytearray, so that the array can be written to.
        joined = bytearray().join(records)
        tokens = np.frombuffer(joined, stored).reshape(len(records), self.length)
        dtype = np.dtype(self.dtype)
        info = np.iinfo(dtype)
        if tokens.size and not np.can_cast(tokens.dtype, dtype):
            outside = (tokens < info.min) | (tokens > info.max)
            if outside.any():
                row = int(np.argmax(outside.any(axis=1)))
                raise DecodeError(
                    "record has a token that its dtype cannot hold",
                    row=row,
                    expected=f"{dtype.name}, {info.min} to {info.max}",
                    got=int(tokens[row][outside[row]][0]),
                    cure="choose a larger dtype",
                )
        return tokens.astype(dtype, copy=False)
