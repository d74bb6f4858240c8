"""Several writers, one split: the order of its records, and what prevents a commit."""

from __future__ import annotations

import concurrent.futures
import pathlib
import threading
from typing import Any

import pytest

from gristmill import loader
from gristmill.dataset import (
    DataLossError,
    GristmillError,
    InputError,
    JobChangedError,
    Writer,
    commit_parts,
    open_manifest,
    read_manifest,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata import layout
from gristmill.pipelines.verify import verify
from tests.support.conversion import contents
from tests.support.records import text_records

PARTS = [text_records(count, seed=count) for count in (25, 0, 40, 7)]
RECORDS = [record for part in PARTS for record in part]


def write_part(output: Any, part: int, parts: int = len(PARTS), **options: Any) -> None:
    options = {"records_per_shard": 10, **options}
    with Writer(output, part=part, parts=parts, **options) as writer:
        for record in PARTS[part][writer.position_records :]:
            writer.write(record)


def records_of(output: Any) -> list[bytes]:
    dataset = loader.open(output)
    return dataset.read(range(len(dataset)))


def shards_of(output: pathlib.Path, part: int) -> list[pathlib.Path]:
    """Returns the shards of a part that are there, in order."""
    return sorted(output.glob(f"data-train.array_record-*-{part:05d}-0*-0*"))


def test_the_parts_follow_each_other(tmp_path: pathlib.Path) -> None:
    for part in (2, 0, 3, 1):
        assert read_manifest(tmp_path / "data") is None
        write_part(tmp_path / "data", part)
    manifest = commit_parts(tmp_path / "data")
    assert records_of(tmp_path / "data") == RECORDS
    assert manifest == open_manifest(tmp_path / "data")
    assert manifest.splits["train"].shards == 3 + 4 + 1
    found = verify(str(tmp_path / "data"), workers=1)
    assert (found.findings, found.leftovers) == ((), ())
    # Repeated, it does nothing; nor do the writers.
    before = contents(tmp_path / "data")
    assert commit_parts(tmp_path / "data") == manifest
    with Writer(
        *(tmp_path / "data",), part=2, parts=4, records_per_shard=10, resume=True
    ) as writer:
        assert writer.position_records == 40
    assert contents(tmp_path / "data") == before


def test_missing_parts_are_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="no parts to commit"):
        commit_parts(tmp_path / "data")
    write_part(tmp_path / "data", 2)
    with pytest.raises(DataLossError, match=r"3 of 4 parts(.|\n)*part 0, 1, 3"):
        commit_parts(tmp_path / "data")
    for part in (0, 1, 3):
        write_part(tmp_path / "data", part)
    commit_parts(tmp_path / "data")
    assert records_of(tmp_path / "data") == RECORDS


def test_a_part_is_written_once(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "data"
    for part in range(len(PARTS)):
        write_part(output, part)
    with pytest.raises(JobChangedError, match="part 2 of 4 has been written already"):
        write_part(output, 2)
    with Writer(output, part=2, parts=4, records_per_shard=10, resume=True) as writer:
        assert writer.position_records == 40
        with pytest.raises(InputError, match="its part is finished"):
            writer.write(b"more")
    write_part(output, 2, overwrite=True)
    commit_parts(output)
    assert records_of(output) == RECORDS


def test_finished_parts_with_other_options_stay(tmp_path: pathlib.Path) -> None:
    output, other = tmp_path / "data", {"records_per_shard": 20}
    write_part(output, 0)
    before = contents(output)
    with pytest.raises(JobChangedError, match="records_per_shard was 10, is 20"):
        write_part(output, 1, **other, resume=True)
    # They have files of their own.
    write_part(output, 1, **other)
    assert before.items() <= contents(output).items()
    with pytest.raises(JobChangedError, match=r"different options(.|\n)*unfinished"):
        commit_parts(output)
    clean(str(output), unfinished=True)
    assert contents(output).keys() == {"dataset.json"}
    for part in range(len(PARTS)):
        write_part(output, part, **other)
    commit_parts(output)
    assert records_of(output) == RECORDS


def test_a_part_that_is_begun_anew_takes_nothing_of_the_one_before(
    tmp_path: pathlib.Path,
) -> None:
    output = tmp_path / "data"
    write_part(output, 0)
    left = contents(output)
    with Writer(
        output, part=0, parts=4, records_per_shard=10, overwrite=True
    ) as writer:
        assert writer.position_records == 0
        # One that still lives publishes a shard of its own.
        for name, data in left.items():
            if "array_record" in name:
                (output / name).write_bytes(data)
        writer.write(b"other")
    for part in (1, 2, 3):
        write_part(output, part)
    commit_parts(output)
    assert records_of(output) == [b"other", *PARTS[2], *PARTS[3]]
    found = verify(str(output), workers=1)
    assert (found.findings, found.leftovers) == ((), ())


@pytest.mark.slow
def test_all_writers_begin_at_once_over_what_is_left(tmp_path: pathlib.Path) -> None:
    output, barrier = tmp_path / "data", threading.Barrier(len(PARTS))

    def write(part: int) -> None:
        barrier.wait()
        write_part(output, part, overwrite=True)

    for _ in range(2):
        for part in (0, 2):
            write_part(output, part, overwrite=True)
        with concurrent.futures.ThreadPoolExecutor(len(PARTS)) as pool:
            list(pool.map(write, range(len(PARTS))))
        commit_parts(output, overwrite=True)
        assert records_of(output) == RECORDS


def test_a_split_that_is_there_is_replaced_on_request(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "data"
    with Writer(output) as writer:
        writer.write(b"old")
    with pytest.raises(JobChangedError, match="holds this split already"):
        write_part(output, 0)
    for part in range(len(PARTS)):
        write_part(output, part, overwrite=True)
    # It keeps what is there, and is committed already.
    assert commit_parts(output).splits["train"].records == 1
    assert records_of(output) == [b"old"]
    commit_parts(output, overwrite=True)
    assert records_of(output) == RECORDS
    with pytest.raises(InputError, match="no parts to commit"):
        commit_parts(output, overwrite=True)


SHARD, INDEX, TABLE = "{}", "index/{}.index", "part"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (SHARD, None, "is missing"),
        (SHARD, INDEX, "shard has the wrong size"),
        (INDEX, None, "is missing"),
        (TABLE, SHARD, "cannot be read"),
    ],
)
def test_what_is_lost_is_found_before_the_commit(
    tmp_path: pathlib.Path, name: str, other: str | None, message: str
) -> None:
    output = tmp_path / "data"
    for part in range(len(PARTS)):
        write_part(output, part)
    _, shard, *_ = [path.name for path in shards_of(output, 2)]
    (part,) = output.glob("index/*part-00002-of-00004.npz")
    paths = {
        SHARD: output / shard,
        INDEX: output / layout.index_path(shard),
        TABLE: part,
    }
    if other is None:
        paths[name].unlink()
    else:
        paths[name].write_bytes(paths[other].read_bytes())
    with pytest.raises(GristmillError, match=message):
        commit_parts(output)
    assert read_manifest(output) is None
    if name == TABLE:  # How often the part was begun is not known.
        clean(str(output), unfinished=True)
    for part in range(len(PARTS)):
        write_part(output, part, overwrite=True)
    commit_parts(output)
    assert records_of(output) == RECORDS
