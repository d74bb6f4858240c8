"""A check of a certificate: pairs are read again from the inputs, and compared."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

import numpy as np

from gristmill.dataset.base.errors import InvalidDatasetError, StorageChangedError
from gristmill.dataset.duplicates.certificate import Certificate, open_certificate
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.text.formatting import plural
from gristmill.transforms.duplicates.record_keys import RecordKeys
from gristmill.transforms.jobs.duplicate_comparison import Comparison
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import FORMATS, SourceSpec
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.record_source import source_of

_PAIRS_AT_ONCE = 1 << 10
_Place = tuple[int, int]  # The number of a file, and the place in it.


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedCertificate:
    """A certificate that is right as far as it was checked.

    Attributes:
        certificate: The file.
        by: What is the same in its pairs.
        records: Number of all records.
        kept: How many are kept.
        removed: How many are removed.
        pairs: How many of these were compared with the record that is kept.
    """

    certificate: str
    by: str
    records: int
    kept: int
    removed: int
    pairs: int

    def text(self) -> str:
        """Returns it for a person."""
        return (
            f"{self.certificate}: {plural(self.records, 'record')} = {self.kept:,} "
            f"kept + {self.removed:,} removed, by {self.by}\n"
            f"  compared     {self.pairs:,} of {plural(self.removed, 'pair')}, byte by "
            "byte: the same"
        )

    def json(self) -> str:
        """Returns it as one JSON object."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def verify_certificate(path: str, *, pairs: int = 0) -> CheckedCertificate:
    """Checks the whole file of a certificate, and some of its pairs.

    Args:
        path: The certificate.
        pairs: How many pairs to read, others in each call; 0 for all.

    Raises:
        InvalidDatasetError: It is damaged, or the records of a pair are not the same.
        StorageChangedError: An input has another size.
    """
    found = open_certificate(path)
    spec = SourceSpec.from_json(found.searched.source)
    readers = _Inputs(found, spec)
    removed = found.removed
    chosen = np.arange(removed)
    if 0 < pairs < removed:
        chosen = np.sort(np.random.default_rng().choice(removed, pairs, replace=False))
    first = 0
    waiting: list[tuple[_Place, _Place]] = []
    # Others are read from their start: many at once then.
    at_once = _PAIRS_AT_ONCE << (0 if FORMATS[spec.format].sized else 6)
    for block in found.blocks():
        inside = slice(*np.searchsorted(chosen, [first, first + len(block)]))
        for file, kept_file, place, kept_place in block[
            chosen[inside] - first
        ].tolist():
            waiting.append(((file, place), (kept_file, kept_place)))
            if len(waiting) >= at_once:
                readers.compare(waiting)
                waiting = []
        first += len(block)
    readers.compare(waiting)
    return CheckedCertificate(
        certificate=path,
        by=found.searched.by,
        records=found.records.records,
        kept=found.kept,
        removed=removed,
        pairs=len(chosen),
    )


class _Inputs:
    """The inputs of a certificate.

    Args:
        certificate: The certificate.
        spec: How their records are made.
    """

    def __init__(self, certificate: Certificate, spec: SourceSpec):
        self._certificate, self._spec = certificate, spec
        self._source = source_of(spec)
        by = Comparison.parse(certificate.searched.by)
        self._keys = RecordKeys(by, spec)

    def compare(self, pairs: Sequence[tuple[_Place, _Place]]) -> None:
        """Compares the records of pairs; raises as `verify_certificate` does."""
        wanted: dict[int, list[int]] = {}
        for file, place in sorted({place for pair in pairs for place in pair}):
            wanted.setdefault(file, []).append(place)
        keys = {
            (file, place): key
            for file, places in wanted.items()
            for place, key in self._read(file, places)
        }
        for lost, kept in pairs:
            if self._certificate.between(kept[0], kept[1], kept[1]).size:
                raise self._differ(lost, kept, "a record that is kept", "one removed")
            one, other = keys.get(lost), keys.get(kept)
            if one is None or one != other:
                sizes = [
                    "no record" if key is None else f"{len(key):,} bytes"
                    for key in (other, one)
                ]
                same = " that are others" if sizes[0] == sizes[1] else ""
                raise self._differ(lost, kept, sizes[0], sizes[1] + same)

    def _differ(
        self, lost: _Place, kept: _Place, expected: str, got: str
    ) -> InvalidDatasetError:
        lost_text, kept_text = map(self._text, (lost, kept))
        return InvalidDatasetError(
            "a removed record is not the same as the one that is kept for it",
            where=f"{lost_text}, removed for {kept_text}",
            expected=expected,
            got=got,
            cure="restore the inputs as they were, or find the duplicates again",
        )

    def _text(self, place: _Place) -> str:
        path, _, _ = self._certificate.searched.files[place[0]]
        return f"{path}, {self._source.place_text(place[1])}"

    def _read(self, number: int, places: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yields places of a file and what is compared of the records there."""
        path, size, compression = self._certificate.searched.files[number]
        info = storage_for(path).stat(path)
        if info is None or info.size_bytes != size:
            raise StorageChangedError(
                "an input is not the one that duplicates were found in",
                where=path,
                expected=f"{size:,} bytes",
                got="no file" if info is None else f"{info.size_bytes:,} bytes",
                cure="restore it, or find the duplicates again",
            )
        file = InputFile(
            *(path, size, info.version, compression),  # type: ignore[arg-type]
            spec=self._spec,
        )
        plain = compression == "none"
        ranges = [(0, size if plain else -1)]
        if plain and FORMATS[self._spec.format].sized:
            ranges = [(place, min(place + 1, size)) for place in places]
        left = {*places}
        for begin, end in ranges:
            one = SourceRange(
                file_index=0, begin_bytes=begin, end_bytes=end, exact=True
            )
            for batch in self._source.read(file, one).batches():
                here = [row for row, at in enumerate(batch.places) if at in left]
                records = [batch.records[row] for row in here]
                found = [batch.places[row] for row in here]
                texts = [self._text((number, place)) for place in found]
                keys = self._keys.keys(records, texts.__getitem__)
                yield from zip(found, keys, strict=True)
                left.difference_update(found)
                if not left:
                    return
