"""Columns of numbers, in files that carry a version."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import FormatVersionError, InvalidDatasetError

# Python 3.11.7, for example, fails now and then when several threads parse the headers
# of arrays at once: "AST constructor recursion depth mismatch".
_TRIES = 10
# Maximum ratio of decompressed to stored bytes: an array of one value may reach it, but
# not all of them.
_LEAST_BYTES, _MOST_RATIO = 64 << 20, 64


def columns_of(
    types: Mapping[str, str], rows: Iterable[Sequence[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Returns rows as columns of these names and types."""
    values = list(zip(*rows, strict=True)) or [()] * len(types)
    return {
        name: np.array(column, dtype)
        for (name, dtype), column in zip(types.items(), values, strict=True)
    }


def load_arrays(data: bytes, *, where: str, version: int) -> dict[str, Any]:
    """Returns the arrays of an `.npz` file that carries a version.

    Raises InvalidDatasetError if it cannot be read, and FormatVersionError if its
    version is unknown.
    """
    try:
        arrays = _arrays(data)
        found = arrays.pop("version").item()
    except Exception as e:  # numpy, zipfile and zlib raise a dozen kinds of errors.
        raise InvalidDatasetError(
            "table cannot be read",
            where=where,
            got=str(e) or type(e).__name__,
            cure="restore it from a copy, or run the conversion again with --overwrite",
        ) from e
    if found != version:
        raise FormatVersionError.unknown(
            "table", where=where, expected=version, got=found
        )
    return arrays


def _arrays(data: bytes) -> dict[str, Any]:
    tries = 0
    while True:
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                _check_size(file, len(data))
                return {name: np.asarray(file[name]) for name in file.files}
        except SystemError:
            tries += 1
            if tries == _TRIES:
                raise


def _check_size(file: Any, stored_bytes: int) -> None:
    """Raises ValueError if arrays would take far more memory than their file."""
    most_bytes = _LEAST_BYTES + _MOST_RATIO * stored_bytes
    # No more than this is decompressed from a member.
    found_bytes = sum(member.file_size for member in file.zip.infolist())
    if found_bytes > most_bytes:
        raise ValueError(
            f"{stored_bytes:,} bytes that decompress to {found_bytes:,}, more than "
            f"{most_bytes:,}"
        )
