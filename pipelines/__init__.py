"""Whole jobs: the command line, and stand-ins for `array_record.beam.pipelines`.

The stand-ins are imported when first asked for: the command line starts without Beam.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.pipelines.drop_in import (
        convert_tf_to_arrayrecord_disk,
        convert_tf_to_arrayrecord_disk_match_shards,
        convert_tf_to_arrayrecord_gcs,
    )

__all__ = [
    "convert_tf_to_arrayrecord_disk",
    "convert_tf_to_arrayrecord_disk_match_shards",
    "convert_tf_to_arrayrecord_gcs",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.drop_in"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
