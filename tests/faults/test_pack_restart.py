"""Packing that stopped half way: shards, segment indexes and indexes fit in the end."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
import re
import shutil
from collections.abc import Iterator

import pytest

from gristmill import dataset
from gristmill.dataset.base.errors import InputError, JobChangedError
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata import layout
from gristmill.pipelines.verify import verify
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.make_shards import convert_shard
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.pack_options import PackOptions
from tests.support.conversion import (
    contents,
    convert,
    finished_shard,
    job_of,
    prepared_of,
)
from tests.support.kills import Killer
from tests.support.records import frames_of

SHARDS = 3
KILLED = -9
OUT = "gs://bucket/out"


def records(count: int = 90) -> list[bytes]:
    chance = random.Random(7)
    lengths = [chance.choice((0, 5, 17, 40, 130)) for _ in range(count)]
    return [
        dataset.encode_example({"ids": [chance.randrange(1000) for _ in range(length)]})
        for length in lengths
    ]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("in") / "a.tfrecord"
    path.write_bytes(frames_of(records()))
    return path


def packing(
    inputs: pathlib.Path | str, output: pathlib.Path | str, *, length: int = 32
) -> ConversionJob:
    pack = PackOptions(length=length, column="ids")
    return job_of(inputs, output, plan=("num_shards", SHARDS), pack=pack)


def shard_path(shard: int) -> str:
    return layout.shard_name("data", "train", shard, SHARDS)


def segments_file(output: pathlib.Path | str, shard: int) -> pathlib.Path:
    return pathlib.Path(output, layout.segments_path(shard_path(shard)))


HARMS = {
    "gone": lambda path: path.unlink(),
    "short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.fixture(scope="module")
def expected(inputs, tmp_path_factory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    convert(packing(inputs, output))
    assert not verify(str(output), workers=1).findings
    return contents(output)


class TestUnfinished:
    @pytest.fixture
    def half_done(self, inputs, tmp_path) -> ConversionJob:
        job = packing(inputs, tmp_path / "out")
        prepared = prepared_of(job)
        for shard in (0, 2):
            convert_shard(prepared, shard)
        return job

    def test_finished_shards_stay(self, half_done, expected):
        kept = [
            pathlib.Path(half_done.output, path)
            for shard in (0, 2)
            for path in (
                shard_path(shard),
                layout.segments_path(shard_path(shard)),
                layout.index_path(shard_path(shard)),
            )
        ]
        before = [path.stat().st_ino for path in kept]
        convert(half_done)
        assert [path.stat().st_ino for path in kept] == before
        assert contents(half_done.output) == expected

    @pytest.mark.parametrize("harm", HARMS)
    def test_a_segment_index_that_is_not_whole(self, half_done, expected, harm):
        HARMS[harm](segments_file(half_done.output, 2))
        prepared = prepared_of(half_done)
        assert finished_shard(prepared, 2) is None
        assert finished_shard(prepared, 0) is not None
        convert(half_done)
        assert contents(half_done.output) == expected

    @pytest.mark.parametrize("harm", HARMS)
    def test_lost_after_the_commit(self, half_done, expected, harm):
        convert(half_done)
        HARMS[harm](segments_file(half_done.output, 1))
        assert verify(half_done.output, workers=1, quick=True).findings
        convert(half_done)
        assert contents(half_done.output) == expected

    def test_an_end_before_the_index(self, half_done, expected):
        """The shard and its segment index are there: they are made again."""
        index = pathlib.Path(half_done.output, layout.index_path(shard_path(2)))
        index.unlink()
        assert finished_shard(prepared_of(half_done), 2) is None
        convert(half_done)
        assert contents(half_done.output) == expected

    def test_other_rows_are_another_job(self, half_done):
        """Of rows that are not wanted any more, no segment index is left."""
        other = dataclasses.replace(
            half_done, pack=PackOptions(length=64, column="ids")
        )
        (note,) = begin_job(other).notes
        assert "pack.length was 32, is 64" in note
        convert(other)
        clean(half_done.output, unfinished=True)
        found = verify(half_done.output, workers=1)
        assert (found.findings, found.leftovers) == ((), ())
        with pytest.raises(JobChangedError, match=r"pack\.length was 64, is 32"):
            convert(half_done)


def test_inputs_whose_pattern_would_match_a_segment_index(inputs, tmp_path) -> None:
    """The next run would take it for an input."""
    source = tmp_path / "in" / "index" / "a.segments"
    source.parent.mkdir(parents=True)
    shutil.copy(inputs, source)
    pattern = f"{tmp_path}/*/index/*.segments"
    convert(job_of(pattern, tmp_path / "records"))
    with pytest.raises(InputError, match="the output lies among the inputs"):
        convert(packing(pattern, tmp_path / "rows"))


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    with Killer(tmp_path_factory.mktemp("killer")) as killer:
        yield killer


def command(inputs: pathlib.Path, output: pathlib.Path | str, *more: str) -> list[str]:
    return [
        *("pack", str(inputs), str(output), "--name=data", "--column=ids"),
        *("--length=32", f"--num-shards={SHARDS}", "--workers=1", *more),
    ]


def plain(inputs: pathlib.Path, output: pathlib.Path | str, *more: str) -> list[str]:
    return [
        *("convert", str(inputs), str(output), "--name=data"),
        *(f"--num-shards={SHARDS}", "--workers=1", *more),
    ]


STRIDES = [
    61,
    pytest.param(1, marks=pytest.mark.soak),
]


@pytest.mark.slow
@pytest.mark.parametrize("stride", STRIDES)
def test_a_kill_at_any_step(killer, inputs, tmp_path, stride: int) -> None:
    ended = killer.run(command(inputs, tmp_path / "expected"))
    assert ended.status == 0, ended.error
    expected = contents(tmp_path / "expected")
    output, kill_at = tmp_path / "out", stride // 2 + 1
    while True:
        ended = killer.run(command(inputs, output), kill_at=kill_at)
        if ended.status != KILLED:
            break
        for shard in range(SHARDS):
            index = output / layout.index_path(shard_path(shard))
            # Where there is an index, all is there.
            if index.exists():
                assert (output / shard_path(shard)).exists()
                assert segments_file(output, shard).exists()
        again = killer.run(command(inputs, output))
        assert again.status == 0, again.error
        assert contents(output) == expected
        shutil.rmtree(output)
        kill_at += stride
    assert ended.status == 0, ended.error
    assert kill_at > stride


@pytest.mark.slow
@pytest.mark.parametrize("stride", [*STRIDES[1:], 97])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (plain, command),
        pytest.param(command, plain, marks=pytest.mark.slow),
        pytest.param(command, command, marks=pytest.mark.slow),
    ],
    ids=["records become rows", "rows become records", "other rows"],
)
def test_a_kill_at_any_step_of_a_replacement(
    killer, inputs, tmp_path, old, new, stride: int
) -> None:
    more = ("--length=64",) if new is command else ()
    argv = new(inputs, tmp_path / "out", *more, "--overwrite")
    assert killer.run(old(inputs, tmp_path / "old")).status == 0
    output, kill_at = tmp_path / "out", stride // 2 + 1
    shutil.copytree(tmp_path / "old", output)
    whole = killer.run(argv)
    assert whole.status == 0, whole.error
    expected = numbered(contents(output))
    shutil.rmtree(output)
    while True:
        shutil.copytree(tmp_path / "old", output)
        ended = killer.run(argv, kill_at=kill_at)
        if ended.status != KILLED:
            break
        again = killer.run(argv)
        assert again.status == 0, again.error
        assert numbered(contents(output)) == expected
        shutil.rmtree(output)
        kill_at += stride
    assert ended.status == 0, ended.error
    assert numbered(contents(output)) == expected
    assert kill_at > stride


def numbered(files: dict[str, bytes]) -> set[str]:
    """Returns the names of files, whatever the number of their edition."""
    return {re.sub(r"e\d{5}", "eN", name) for name in files}


@pytest.mark.parametrize(
    "stride",
    [pytest.param(61, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)],
)
def test_a_kill_at_any_request(server, inputs, tmp_path, stride: int) -> None:
    """In a bucket: files are copied, and a request may be done and not answered."""
    argv = command(inputs, OUT, "--overwrite")
    bucket = server.objects.buckets
    with Killer(tmp_path) as killer:
        assert killer.run(plain(inputs, OUT)).status == 0
        before = dict(bucket["bucket"])
        assert killer.run(argv).status == 0
        expected = {name: stored.data for name, stored in bucket["bucket"].items()}
        assert sum(name.endswith(".segments") for name in expected) == SHARDS
        kill_at = stride // 2 + 1
        while True:
            bucket["bucket"] = dict(before)
            ended = killer.run(argv, kill_at=kill_at, after=kill_at % 2 == 0)
            if ended.status != KILLED:
                break
            again = killer.run(argv)
            assert again.status == 0, again.error
            found = {name: stored.data for name, stored in bucket["bucket"].items()}
            assert numbered(found) == numbered(expected)
            assert not verify(OUT, workers=1).findings
            kill_at += stride
    assert ended.status == 0, ended.error
    assert kill_at > stride


@pytest.mark.slow
def test_a_segment_index_of_another_content_in_a_bucket(server, inputs) -> None:
    """A bucket keeps checksums: also one of the same size is not taken as finished."""
    job = packing(inputs, OUT)
    prepared = prepared_of(job)
    convert_shard(prepared, 1)
    assert finished_shard(prepared, 1) is not None
    path = f"out/{layout.segments_path(shard_path(1))}"
    data = server.objects.buckets["bucket"][path].data
    server.objects.put("bucket", path, data[:-1] + bytes([data[-1] ^ 1]))
    assert finished_shard(prepared, 1) is None
    convert(job)
    assert not verify(OUT, workers=1).findings
    # A listing tells: no file is read.
    server.objects.put("bucket", path, data[:-1] + bytes([data[-1] ^ 1]))
    (finding,) = verify(OUT, workers=1, quick=True).findings
    assert f"out/{finding.path}" == path
    assert finding.what == "segment index is not the file that was written"
