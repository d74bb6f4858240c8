"""Reads converted datasets in a deterministic order and feeds trainers from them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.loader.data_source import ArrayRecordDataSource
    from gristmill.loader.open_dataset import Dataset, ShardInfo, open

__all__ = ["ArrayRecordDataSource", "Dataset", "ShardInfo", "open"]

# Imported when first used: a trainer that only opens a dataset needs nothing else.
_HOMES = {
    "ArrayRecordDataSource": "data_source",
    "Dataset": "open_dataset",
    "ShardInfo": "open_dataset",
    "open": "open_dataset",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
