"""Names of a package that are imported when they are first used.

Some names of a package need libraries that users of its other names may not have, or
are slow to import.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: Name of the package. Its names are those that its `__init__` imports
            under `if TYPE_CHECKING:`.
    """

    @functools.cache
    def homes() -> dict[str, str | None]:
        source = pkgutil.get_data(package, "__init__.py")
        return {
            alias.name: node.module
            for branch in ast.parse(source or b"").body
            if isinstance(branch, ast.If)
            for node in branch.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def get(name: str) -> Any:
        home = homes().get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with packages_named():
            return getattr(importlib.import_module(home), name)

    return get, lambda: sorted(homes())


@contextlib.contextmanager
def packages_named() -> Iterator[None]:
    """Adds what to install to the failed import of an optional package."""
    try:
        yield
    except ModuleNotFoundError as e:
        from gristmill.dataset.base.errors import MissingPackageError

        missing = MissingPackageError.of(e)
        if missing is None:
            raise
        raise missing from e
