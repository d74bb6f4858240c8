"""`FindDuplicates`: the certificate of a local search, byte for byte, on runners."""

from __future__ import annotations

import itertools
import pathlib
import random

import pytest

from gristmill.dataset.base.errors import CorruptRecordError, InputError
from gristmill.pipelines.duplicates.find import find_duplicates
from gristmill.pipelines.duplicates.search import search
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.transforms import FindDuplicates, RecordOptions
from gristmill.transforms.beam.find_duplicates import search_of
from gristmill.transforms.duplicates.commit_certificate import plan_search
from gristmill.transforms.jobs.duplicate_comparison import Comparison
from tests.support.conversion import job_of
from tests.support.duplicates import (
    expected_of,
    options_of,
    removals_in,
    write_inputs,
)
from tests.support.pipelines import (
    BUNDLE_BASED,
    BUNDLES_TWICE,
    IN_MEMORY,
    WORKER_PROCESSES,
    run,
)
from tests.support.records import frames_of, write_tfrecords


def local(folder: pathlib.Path, pattern: str, by: str, records: RecordOptions):
    """Finds duplicates here; returns the certificate and what it should list."""
    path, compared = folder / "local", Comparison.parse(by)
    job = job_of(pattern, path, records=records)
    prepared = plan_search(job, compared)
    find_duplicates(
        *(prepared, compared, str(path)), work_dir=f"{path}.parts", workers=1
    )
    return path, expected_of(prepared.files, compared.kind)


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        *itertools.product(
            (IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED), ("jsonl", "parquet")
        ),
        pytest.param(WORKER_PROCESSES, "jsonl", marks=pytest.mark.soak),
        pytest.param(WORKER_PROCESSES, "parquet", marks=pytest.mark.slow),
    ],
    ids=lambda value: value[-1].lstrip("-") if isinstance(value, tuple) else value,
)
def test_certificate_is_that_of_a_local_run(tmp_path, kind, argv) -> None:
    records = options_of(kind)
    pattern = write_inputs(tmp_path / "in", random.Random(11), kind)
    path, expected = local(tmp_path, pattern, "normalised", records)
    beam = tmp_path / "beam"
    transform = FindDuplicates(
        inputs=pattern, certificate=beam, by="normalised", records=records
    )
    (found,) = run(transform, argv=argv)
    assert found == (str(beam), "normalised:text", found.records, len(expected))
    assert found.kept == found.records - len(expected)
    assert beam.read_bytes() == path.read_bytes()
    assert removals_in(beam) == expected
    assert sorted(one.name for one in tmp_path.iterdir()) == ["beam", "in", "local"]


def test_one_record_a_million_times_is_one_entry_a_run(tmp_path) -> None:
    write_tfrecords(tmp_path / "a", [b"same"] * 3000)
    (found,) = run(
        FindDuplicates(inputs=tmp_path / "a", certificate=tmp_path / "c", by="record")
    )
    assert (found.records, found.kept) == (3000, 1)


def test_the_command_hands_its_result_over(tmp_path: pathlib.Path) -> None:
    write_tfrecords(tmp_path / "a", [b"1", b"2", b"1"])
    options = ConvertOptions(input=(str(tmp_path / "a"),), output=str(tmp_path / "c"))
    found, _ = search(options, "record", beam_options=[*IN_MEMORY])
    assert (found.records, found.removed) == (3, 1)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "c"]


def test_a_range_that_was_entered_wrongly_is_an_error(tmp_path) -> None:
    inner = frames_of([random.Random(8).randbytes(500)] * 400)
    write_tfrecords(tmp_path / "a", [b"first", inner, b"last"])
    job = job_of(tmp_path / "a", tmp_path / "c", plan=("num_shards", 7))
    transform = search_of(
        job, Comparison.parse("record"), str(tmp_path / "c"), work_dir=f"{tmp_path}/w"
    )
    with pytest.raises(CorruptRecordError, match="--whole-files"):
        run(transform)


def test_wrong_arguments_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="compared by this"):
        FindDuplicates(inputs="a", certificate=tmp_path / "c", by="words")
    with pytest.raises(InputError):
        FindDuplicates(inputs=(), certificate=tmp_path / "c")
    with pytest.raises(InputError, match="among all records"):
        FindDuplicates(
            inputs="in", certificate="out", records=RecordOptions(select="a > 0")
        )
