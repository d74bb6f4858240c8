"""Beam transforms, and the plain functions that they wire.

The transforms are imported when first asked for: the plain functions beside them serve
worker processes that must start without Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.transforms.convert_tfrecords import ConvertTFRecords
    from gristmill.transforms.index_arrayrecords import IndexArrayRecords
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

_HOMES = {
    "ConvertTFRecords": "gristmill.transforms.convert_tfrecords",
    "IndexArrayRecords": "gristmill.transforms.index_arrayrecords",
    "ReadArrayRecords": "gristmill.transforms.read_arrayrecords",
    "ReadTFRecords": "gristmill.transforms.read_tfrecords",
    "VerifyDataset": "gristmill.transforms.verify_dataset",
    "WriteArrayRecords": "gristmill.transforms.write_arrayrecords",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
