"""The source of a format, imported when it is needed: some have extra packages."""

from __future__ import annotations

import functools
import importlib
from typing import cast

from gristmill.dataset.base.errors import MissingPackageError
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.damage import DamageHandler
from gristmill.transforms.sources.formats import FORMATS, TFRECORD, SourceSpec
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.protocol import Source, SourceModule


def source_module(format_name: str) -> SourceModule:
    """Returns the module of a format, one of `FORMATS`.

    Raises:
        MissingPackageError: The package that reads the format is missing.
    """
    try:
        module = importlib.import_module(FORMATS[format_name].module)
    except ModuleNotFoundError as e:
        missing = MissingPackageError.of(e)
        if missing is None:
            raise
        raise missing from e
    return cast(SourceModule, module)


@functools.lru_cache(maxsize=64)
def source_of(spec: SourceSpec | None) -> Source:
    """Returns the source that makes records by a spec, by default `TFRECORD`."""
    spec = TFRECORD if spec is None else spec
    return source_module(spec.format).make_source(spec)


def certain_place(
    file: InputFile, offset: int, *, on_damage: DamageHandler | None = None
) -> int:
    """Returns where the first record at or after an offset begins, without a search.

    Goes record by record from the start of the file, for TFRecords about ten times as
    fast as making shards. Damage on the way is handled by `on_damage`.

    Args:
        file: The file, not compressed.
        offset: The offset.
        on_damage: Takes damaged regions; None makes them errors.

    Raises:
        CorruptRecordError: The file is damaged before `offset`, and there is no
            `on_damage`.
    """
    known = _certain_places(file, on_damage is not None) if file.version else []
    for begin, place in known:
        if begin <= offset <= place:
            return place
    begin = max((place for _, place in known if place <= offset), default=0)
    before = SourceRange(file_index=0, begin_bytes=begin, end_bytes=offset, exact=True)
    reader = source_of(file.spec).read(file, before, on_damage=on_damage)
    for _ in reader.batches():
        pass
    place = reader.span.stop_bytes or 0
    known.append((offset, place))
    return place


@functools.lru_cache(maxsize=8)
def _certain_places(file: InputFile, damaged: bool) -> list[tuple[int, int]]:
    """Returns offsets of a file, each with the place of the first record from there.

    Many shards can be cut within one record, which is then read once in a process.
    """
    del file, damaged  # The cached list belongs to these.
    return []
