"""Trains MaxText on datasets of gristmill; no file of MaxText is changed.

    python -m gristmill.loader.maxtext src/maxtext/configs/base.yml run_name=first ...

Nothing else imports this package, and of the loader it uses what all users do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.loader.maxtext.installation import install

__all__ = ["install"]

__getattr__, __dir__ = lazy_names(__name__)
