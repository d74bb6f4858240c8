"""Columns of tables become `tf.train.Example` records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.transforms.tables.example_rows import encode_rows
    from gristmill.transforms.tables.json_objects import (
        check_column,
        json_rows,
        null_error,
        one_column,
    )
    from gristmill.transforms.tables.leaves import rows_without_nulls
    from gristmill.transforms.tables.table_features import (
        DOUBLE,
        as_integers,
        common_type,
        features_of,
        read_as,
        seen_numbers,
        typed_features,
    )

__all__ = [
    "DOUBLE",
    "as_integers",
    "check_column",
    "common_type",
    "encode_rows",
    "features_of",
    "json_rows",
    "null_error",
    "one_column",
    "read_as",
    "rows_without_nulls",
    "seen_numbers",
    "typed_features",
]

# Imported when first used: they need pyarrow, which is optional.
__getattr__, __dir__ = lazy_names(__name__)
