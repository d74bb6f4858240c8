"""A stand-in for gcloud that starts fast: takes `flex-template run` apart.

Run as a command, it writes what it was asked for to the file $GCLOUD_LOG, as JSON, and
prints a job's id. Lists are split as `gcloud topic escaping` says. What the real gcloud
does is tested too, and slowly.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys

JOB = "2026-01-02_03_04_05-0"
_LISTS = ("--parameters", "--additional-user-labels")
_SWITCHES = ("--disable-public-ips",)


def listed(value: str) -> dict[str, str]:
    """Returns the items of a list of NAME=VALUE."""
    separator = ","
    if match := re.match(r"\^([^^]+)\^", value):
        separator = match[1]
        value = value[match.end() :]
    items = [item.partition("=") for item in value.split(separator)]
    assert all(equals for _, equals, _ in items), f"no NAME=VALUE: {value}"
    assert len({name for name, _, _ in items}) == len(items), f"twice: {value}"
    return {name: rest for name, _, rest in items}


def main() -> None:
    """Takes the command line of this process apart."""
    assert sys.argv[1:4] == ["dataflow", "flex-template", "run"], sys.argv
    given = iter(sys.argv[5:])
    asked: dict[str, object] = {"name": sys.argv[4]}
    for flag in given:
        assert flag.startswith("--"), flag
        if flag in _SWITCHES:
            asked[flag] = True
        else:
            value = next(given)
            asked[flag] = listed(value) if flag in _LISTS else value
    pathlib.Path(os.environ["GCLOUD_LOG"]).write_text(json.dumps(asked))
    print(JOB)


if __name__ == "__main__":
    main()
