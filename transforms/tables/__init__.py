"""Columns of tables become `tf.train.Example` records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.transforms.tables.column_records import check_column, one_column
    from gristmill.transforms.tables.example_rows import encode_rows
    from gristmill.transforms.tables.table_features import features_of

__all__ = ["check_column", "encode_rows", "features_of", "one_column"]

# Imported when first used: they need pyarrow, which is optional.
__getattr__, __dir__ = lazy_names(__name__)
