"""Beam transforms, and the plain functions that they wire.

The transforms are imported when first asked for: the plain functions beside them serve
worker processes that must start without Beam.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.transforms.convert_tfrecords import ConvertTFRecords
    from gristmill.transforms.index_dataset import IndexArrayRecords
    from gristmill.transforms.read_arrayrecords import ReadArrayRecords
    from gristmill.transforms.read_tfrecords import ReadTFRecords
    from gristmill.transforms.verify_dataset import VerifyDataset
    from gristmill.transforms.write_arrayrecords import WriteArrayRecords

__all__ = [
    "ConvertTFRecords",
    "IndexArrayRecords",
    "ReadArrayRecords",
    "ReadTFRecords",
    "VerifyDataset",
    "WriteArrayRecords",
]

_MODULES = {
    "ConvertTFRecords": "convert_tfrecords",
    "IndexArrayRecords": "index_dataset",
    "ReadArrayRecords": "read_arrayrecords",
    "ReadTFRecords": "read_tfrecords",
    "VerifyDataset": "verify_dataset",
    "WriteArrayRecords": "write_arrayrecords",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
