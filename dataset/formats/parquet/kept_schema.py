"""A comparison of a Parquet file's columns with those that its writer had.

The footer of a file has no checksum. Writers that are built on Arrow keep the schema of
the table in it a second time: a name, or a kind of values, that differs between the two
was damaged.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"ARROW:schema"


def difference(
    schema: pa.Schema, metadata: Mapping[bytes, bytes] | None
) -> tuple[str, str] | None:
    """Returns the first column that differs: as written, and as it is read.

    Args:
        schema: The columns as pyarrow reads them.
        metadata: Metadata of the file.

    Returns:
        None if there is none, or if the writer kept no schema.
    """
    import pyarrow as pa

    text = (metadata or {}).get(_KEY)
    if text is None:
        return None
    try:
        kept = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    except (pa.ArrowException, OSError, ValueError):
        return "a schema of Arrow in the metadata", "one that cannot be read"
    if len(kept) != len(schema):
        return None  # Another program has changed the columns, and kept this.
    for before, after in zip(kept, schema, strict=True):
        if before.name != after.name or _kind(before.type) != _kind(after.type):
            return f"{before.name}: {before.type}", f"{after.name}: {after.type}"
    return None


def _kind(kind: pa.DataType) -> tuple[object, ...]:
    """Returns the part of a type that writing and reading keep."""
    from pyarrow import types

    if getattr(kind, "storage_type", None) is not None:
        return _kind(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _kind(kind.value_type)
    if kind.num_fields:
        # Items of lists get other names on the way.
        named = types.is_struct(kind)
        children = [kind.field(number) for number in range(kind.num_fields)]
        return tuple((named and child.name, _kind(child.type)) for child in children)
    # Any other type is bytes or text. Widths of integers are not always kept.
    tests = (
        *(types.is_floating, types.is_boolean, types.is_decimal, types.is_null),
        *(types.is_integer, types.is_temporal),
    )
    return tuple(test(kind) for test in tests)
