"""Tars of samples as a source, in the layout of WebDataset.

When inputs are listed, the first samples of some files show the members that samples
have. So all workers know them, and any other member is an error that names it, not a
feature that no reader expects.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from gristmill.dataset.base.errors import CorruptRecordError, InputError, some_of
from gristmill.dataset.formats.tar_samples import (
    KEY,
    RecordMaker,
    SampleReader,
    example_maker,
    member_maker,
)
from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.source import SkippedRegions
from gristmill.transforms.sources.stream_range import StreamPass, StreamSource

_LOOKED_FILES = 16
_LOOKED_BYTES = 16 << 20  # Bytes of each file, or this many samples if that is less.
_LOOKED_SAMPLES = 256


class WebDatasetSource(StreamSource):
    """Records made from samples: an example of the members, or one member."""

    def __init__(self, spec: SourceSpec):
        super().__init__(spec)
        self.open_reader = functools.partial(SampleReader, make=_maker(spec))

    def features(self) -> dict[str, Any] | None:
        """Returns a feature of bytes for each member; any sample may lack one."""
        if self.spec.record != "example":
            return None
        names = self.spec.columns or (KEY, *json.loads(self.spec.schema))
        return encode_features(
            {
                name: FeatureSpec(kind="bytes", dtype="bytes", optional=name != KEY)
                for name in names
            }
        )

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for making records from samples.

        Raises:
            InputError: The first samples lack a chosen member, or have none at all.
        """
        found, damage = _members(files)
        if not found:
            if damage is not None:
                raise damage
            raise InputError(
                "no samples of a WebDataset in the tars",
                where=some_of(files.paths),
                expected="files whose names have an extension, such as 000001.jpg",
                got=f"none, where the first {_LOOKED_SAMPLES} samples would be",
                cure="extract them with tar -xf, then give the files in them",
            )
        member = options.record.partition(":")[2]
        wanted = [member] if member else list(options.columns)
        missing = [name for name in wanted if name not in (KEY, *found)]
        if missing:
            raise InputError(
                "samples have no such member",
                where=some_of(files.paths),
                expected=f"one of {some_of((KEY, *found), 12)}",
                got=some_of(missing),
                cure="name members by their extensions, in lower case",
            )
        # Other members do not matter for records made from chosen ones.
        return options.spec(json.dumps([] if wanted else found))


def _maker(spec: SourceSpec) -> RecordMaker:
    if member := spec.record.partition(":")[2]:
        return member_maker(member)
    # With chosen members, any others are ignored.
    known = None if spec.columns else json.loads(spec.schema)
    return example_maker(known, spec.columns)


class _FirstDamage(SkippedRegions):
    """Keeps the fault at the first damaged place."""

    error: CorruptRecordError | None = None

    def add(self, error: CorruptRecordError, path: str, **region: Any) -> None:
        super().add(error, path, **region)
        self.error = self.error or error


def _members(files: InputFiles) -> tuple[list[str], CorruptRecordError | None]:
    """Returns the extensions of the members of some samples, and the first damage."""
    looked = [found for _, found in files.looked(_look, _LOOKED_FILES)]
    damage = next((error for _, error in looked if error is not None), None)
    return sorted(set().union(*(found for found, _ in looked))), damage


def _look(file: InputFile) -> tuple[set[str], CorruptRecordError | None]:
    """Returns the extensions of the first samples of a file, and the first damage."""
    found: list[Iterable[str]] = []
    damage = _FirstDamage()

    def note(key: bytes, members: Mapping[str, bytes]) -> bytes:
        found.append(members.keys())
        return b""

    opened = file.open(end=0)  # Nothing ahead.
    open_reader = functools.partial(SampleReader, make=note)
    with closing(StreamPass(file, opened, open_reader)) as reading:
        for batch in reading.good(skipped=damage):
            if len(found) >= _LOOKED_SAMPLES or batch.places[-1] >= _LOOKED_BYTES:
                break
    return set().union(*found[:_LOOKED_SAMPLES]), damage.error
