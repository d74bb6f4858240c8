"""The decoder of batches of token sequences of one length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import DecodeError, InputError
from gristmill.loader.base.indices import checked_count


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenDecoder:
    """Decodes a batch of token sequences to an array int32 [records, length].

    Attributes:
        length: Tokens in every record.
        stored: Type of the tokens in the records, which are little-endian and end to
            end: an integer type of at most the range of int32, such as uint16.
    """

    length: int
    stored: npt.DTypeLike = "int32"

    def __post_init__(self) -> None:
        checked_count(self.length, what="length")
        stored = np.dtype(self.stored)
        if stored.kind not in "iu" or not np.can_cast(stored, np.int32):
            raise InputError(
                "stored is not a type of tokens",
                expected="an integer type whose values fit into int32",
                got=stored.name,
                cure="choose one, such as int32 or uint16, or decode by a function of "
                "your own",
            )
        object.__setattr__(self, "stored", stored)

    def __call__(self, records: Sequence[bytes]) -> npt.NDArray[np.int32]:
        """Decodes a batch.

        Raises:
            DecodeError: A record has another size.
        """
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
        return tokens.astype(np.int32, copy=False)
