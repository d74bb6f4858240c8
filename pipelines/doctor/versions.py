"""Whether installed packages are in the ranges that gristmill and others ask for."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from gristmill.pipelines.doctor.finding import Finding, error, ok, warning
from gristmill.pipelines.doctor.place import Place
from gristmill.pipelines.results.formatting import plural

_OWN = "gristmill"
_NOT_FOR_USERS = "dev"


class _Pair(NamedTuple):
    """Two distributions that cannot share an environment."""

    first: str
    second: str
    why: str
    cure: str


_SAME_FILES = "both install the same modules, so that which code runs is by chance"
_BAD_PAIRS = (
    _Pair(
        "apache-beam",
        "maxtext",
        "they need different versions of google-cloud-aiplatform and "
        "google-auth-httplib2",
        "put Beam into an environment of its own, and submit conversions from there: "
        "python3 -m venv beam && beam/bin/pip install 'gristmill[beam,gcs]'",
    ),
    *(
        _Pair(
            first,
            second,
            _SAME_FILES,
            f"pip uninstall {second}, then install "
            f"{first} again: pip install --force-reinstall --no-deps {first}",
        )
        for first, second in (
            ("array-record", "array-record-nightly"),
            ("grain", "grain-nightly"),
            ("tensorflow", "tensorflow-cpu"),
            ("tensorflow", "tf-nightly"),
            ("tensorflow-datasets", "tfds-nightly"),
        )
    ),
)


class _Installed(NamedTuple):
    version: str
    requires: tuple[Requirement, ...]


def look_at_versions(place: Place | None) -> Iterator[Finding]:
    """Yields what is wrong with the versions of packages, or that they fit.

    Reads their metadata, and imports none of them.
    """
    del place
    installed = _installed()
    own = installed.get(_OWN)
    if own is None:
        yield warning(
            "gristmill itself is not installed: it has no metadata",
            why="the versions of its packages cannot be compared with its ranges",
            cure="pip install gristmill",
        )
        return
    found = [
        *_python(),
        *_own_ranges(own, installed),
        *_between(installed),
        *_pairs(installed),
    ]
    yield from found
    if not found:
        names = {canonicalize_name(one.name) for one in own.requires}
        there = sum(name in installed for name in names)
        yield ok(
            f"gristmill {own.version} on Python {platform.python_version()}; "
            f"{plural(there, 'package')} in its ranges; extras: "
            f"{', '.join(_extras(own, installed)) or 'none'}"
        )


def _installed() -> dict[str, _Installed]:
    """Returns what is installed by name: of several versions that which is imported."""
    found: dict[str, _Installed] = {}
    for distribution in importlib.metadata.distributions():
        about = distribution.metadata
        if about is None or not about["Name"]:
            continue  # What a broken uninstallation left.
        name = canonicalize_name(about["Name"])
        if name not in found:
            # The properties of a distribution parse its metadata, each time again.
            requires = about.get_all("Requires-Dist") or distribution.requires
            found[name] = _Installed(about["Version"], tuple(_parsed(requires or ())))
    return found


def _parsed(requirements: Iterable[str]) -> Iterator[Requirement]:
    for text in requirements:
        # Old packages of others have some that no standard knows.
        with contextlib.suppress(InvalidRequirement):
            yield Requirement(text)


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(
        marker.evaluate({"extra": extra}) for extra in ("", *extras)
    )


def _fits(requirement: Requirement, version: str) -> bool:
    return requirement.specifier.contains(version, prereleases=True)


def _ranged(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _python() -> Iterator[Finding]:
    about = importlib.metadata.metadata(_OWN)
    # Not by []: importlib_metadata, where it was imported, raises for what is missing.
    wanted = "".join(about.get_all("Requires-Python") or ())
    running = platform.python_version()
    if not SpecifierSet(wanted).contains(running, prereleases=True):
        yield error(
            f"Python {running}; gristmill needs Python {wanted}",
            why="it was not installed for this Python, and is not tested with it",
            cure="uv venv --python 3.12, and install gristmill there",
        )


def _extra_requirements(own: _Installed) -> dict[str, list[Requirement]]:
    """Returns what each extra adds, by its name; that of no extra by ""."""
    extras = importlib.metadata.metadata(_OWN).get_all("Provides-Extra") or []
    found = {"": [one for one in own.requires if _applies(one, frozenset())]}
    for extra in extras:
        if extra != _NOT_FOR_USERS:
            found[extra] = [
                one
                for one in own.requires
                if one not in found[""] and _applies(one, frozenset([extra]))
            ]
    return found


def _extras(own: _Installed, installed: Mapping[str, _Installed]) -> list[str]:
    return [
        extra
        for extra, wanted in _extra_requirements(own).items()
        if extra and all(canonicalize_name(one.name) in installed for one in wanted)
    ]


def _own_ranges(
    own: _Installed, installed: Mapping[str, _Installed]
) -> Iterator[Finding]:
    for extra, wanted in _extra_requirements(own).items():
        owner = f"gristmill[{extra}]" if extra else "gristmill"
        for one in wanted:
            there = installed.get(canonicalize_name(one.name))
            if there is None and not extra:
                yield error(
                    f"{one.name} is not installed; gristmill needs {_ranged(one)}",
                    why="commands fail where they need it",
                    cure=f"pip install '{_ranged(one)}'",
                )
            elif there is not None and not _fits(one, there.version):
                yield (warning if extra else error)(
                    f"{one.name} {there.version}; {owner} needs {_ranged(one)}",
                    why="gristmill is tested with versions in this range alone",
                    cure=f"pip install '{_ranged(one)}'",
                )


def _between(installed: Mapping[str, _Installed]) -> Iterator[Finding]:
    """Yields what other packages need and do not have, around those of gristmill."""
    extras: dict[str, frozenset[str]] = {}
    waiting: list[tuple[str, frozenset[str]]] = [
        (canonicalize_name(one.name), frozenset(one.extras))
        for wanted in _extra_requirements(installed[_OWN]).values()
        for one in wanted
    ]
    while waiting:  # All that gristmill's packages need, with the extras that they ask.
        name, asked = waiting.pop()
        before = extras.get(name)
        if name not in installed or (before is not None and asked <= before):
            continue
        extras[name] = asked | (before or frozenset())
        waiting += [
            (canonicalize_name(one.name), frozenset(one.extras))
            for one in installed[name].requires
            if _applies(one, frozenset(extras[name]))
        ]
    for name in sorted(installed.keys() - {_OWN}):
        for one in installed[name].requires:
            needed = canonicalize_name(one.name)
            if needed not in extras and name not in extras:
                continue
            there = installed.get(needed)
            got, asked = f"no {one.name}", frozenset[str]()
            if there is not None:
                got = f"{one.name} {there.version}"
                asked = extras.get(name, frozenset())
            # In this order: to look at versions is faster than to evaluate markers.
            fits = there is not None and _fits(one, there.version)
            if fits or not _applies(one, asked):
                continue
            yield warning(
                f"{got}; {name} {installed[name].version} needs {_ranged(one)}",
                why=f"{name} may fail where it uses it",
                cure=f"pip install '{_ranged(one)}'; if others need what is there, put "
                "them into another environment",
            )


def _pairs(installed: Mapping[str, _Installed]) -> Iterator[Finding]:
    for pair in _BAD_PAIRS:
        if pair.first in installed and pair.second in installed:
            versions = (
                f"{name} {installed[name].version}"
                for name in (pair.first, pair.second)
            )
            yield warning(f"{' beside '.join(versions)}", why=pair.why, cure=pair.cure)
