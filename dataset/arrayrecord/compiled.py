"""The compiled part, and the libraries that it calls.

It hashes chunks and decodes their records without the interpreter's lock. Zstd and
crc32c are those of the packages zstandard and google-crc32c: it is given the addresses
of their functions. An installation without a C compiler lacks it, and uses numpy and
these packages instead.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

# In the order of `lib` in _compiled.c.
_ZSTD = (
    "ZSTD_createDCtx",
    "ZSTD_freeDCtx",
    "ZSTD_decompressDCtx",
    "ZSTD_isError",
    "ZSTD_getFrameContentSize",
    "ZSTD_findFrameCompressedSize",
    "ZSTD_DCtx_reset",
    "ZSTD_decompressStream",
)
_ZSTD_MODULES = ("zstandard._cffi", "zstandard.backend_c")
_CRC32C_MODULES = ("google_crc32c._crc32c",)


def _addresses(modules: Sequence[str], names: Sequence[str]) -> list[int]:
    """Returns the addresses of functions in a library; zeros if none exports them."""
    for module in modules:
        try:
            spec = importlib.util.find_spec(module)
            library = ctypes.CDLL(str(spec and spec.origin))
            functions = [getattr(library, name) for name in names]
        except (AttributeError, ImportError, OSError, ValueError):
            continue
        return [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions]
    return [0] * len(names)


def prepared(part: Any) -> Any:
    """Returns a module in C after giving it the libraries, if all are there."""
    found = _addresses(_ZSTD_MODULES, _ZSTD)
    found += _addresses(_CRC32C_MODULES, ["crc32c_extend"])
    part.decodes = all(found)
    if part.decodes:
        part.use_libraries(np.array(found, np.uintp))
    return part


def _import() -> Any:
    try:
        name = "gristmill.dataset.arrayrecord._compiled"
        return prepared(importlib.import_module(name))
    except ImportError:
        return None


part: Any = _import()
"""The module in C, None where it is not installed."""


def is_compiled() -> bool:
    """Returns whether the compiled part is installed."""
    return part is not None


def decoder() -> Any:
    """Returns the compiled part if it decodes chunks, which takes both libraries."""
    return part if part is not None and part.decodes else None
