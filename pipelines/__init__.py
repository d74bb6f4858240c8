"""Whole jobs: the command line, and stand-ins for `array_record.beam.pipelines`.

`dataflow_defaults` is for pipelines of your own. All are imported on first access, so
that the command line starts without Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.pipelines.dataflow.defaults import dataflow_defaults
    from gristmill.pipelines.drop_in import (
        convert_tf_to_arrayrecord_disk,
        convert_tf_to_arrayrecord_disk_match_shards,
        convert_tf_to_arrayrecord_gcs,
    )

__all__ = [
    "convert_tf_to_arrayrecord_disk",
    "convert_tf_to_arrayrecord_disk_match_shards",
    "convert_tf_to_arrayrecord_gcs",
    "dataflow_defaults",
]

__getattr__, __dir__ = lazy_names(__name__)
