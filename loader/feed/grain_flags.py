"""Grain's command-line flags in programs that never parse them."""

from __future__ import annotations

import sys


def allow_unparsed_flags() -> None:
    """Lets Grain start worker processes in a script that never parses absl's flags.

    Grain reads a flag when it starts workers, which raises before flags are parsed.
    After this call flags have their defaults; a script can still parse them later.
    """
    flags = sys.modules.get("absl.flags")
    if flags is not None and not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
