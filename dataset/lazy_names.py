"""Names of a package that are imported when they are first used.

Some names of a package need libraries that users of its other names may not have, or
that are slow to import.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: Name of the package.
        homes: The module that defines each public name.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted(homes)
