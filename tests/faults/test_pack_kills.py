"""Packing that is killed at any step: shards and segment indexes fit in the end."""

from __future__ import annotations

import pathlib
import random
import re
import shutil
from collections.abc import Callable, Iterator

import pytest

from gristmill import dataset
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.pipelines.anywhere import verify
from gristmill.transforms.conversion.make_shards import convert_shard
from gristmill.transforms.jobs.pack_options import PackOptions
from tests.faults.kills import Killer
from tests.support.conversion import (
    contents,
    convert,
    finished_shard,
    job_of,
    prepared_of,
)
from tests.support.records import frames_of

SHARDS, KILLED, OUT = 3, -9, "gs://bucket/out"


def packing(inputs, output):
    pack = PackOptions(length=32, column="ids")
    return job_of(inputs, output, plan=("num_shards", SHARDS), pack=pack)


def segments_of(shard: int) -> str:
    return layout.segments_path(layout.shard_name("data", "train", shard, SHARDS))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path, chance = tmp_path_factory.mktemp("in") / "a.tfrecord", random.Random(7)
    lengths = [chance.choice((0, 5, 17, 40, 130)) for _ in range(90)]
    documents = [{"ids": [chance.randrange(1000) for _ in range(n)]} for n in lengths]
    path.write_bytes(frames_of([dataset.encode_example(one) for one in documents]))
    return path


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    with Killer(tmp_path_factory.mktemp("killer")) as killer:
        yield killer


def pack(inputs, output, *more: str) -> list[str]:
    return [*("pack", str(inputs), str(output), "--column=ids", "--length=32"), *more]


def plain(inputs, output, *more: str) -> list[str]:
    return ["convert", str(inputs), str(output), *more]


def done(killer: Killer, argv: list[str], **options) -> bool:
    """Runs a command, and returns whether it ended by itself, which is well."""
    common = ("--name=data", f"--num-shards={SHARDS}", "--workers=1")
    ended = killer.run([*argv, *common], **options)
    assert ended.status in (0, KILLED), ended.error
    return ended.status == 0


def numbered(files) -> set[str]:
    """Returns the names of files, whatever the number of their edition."""
    return {re.sub(r"e\d{5}", "eN", name) for name in files}


def kill_everywhere(
    killer: Killer,
    argv: list[str],
    stride: int,
    *,
    before: Callable[[], object],
    look: Callable[[], object] = lambda: None,
    check: Callable[[], object],
    after: Callable[[int], bool] = lambda kill_at: False,
) -> None:
    """Kills a command at every `stride`th step, and runs it again.

    Args:
        killer: Runs it.
        argv: The command.
        stride: Of the steps.
        before: Makes what it finds.
        look: What holds when it was killed.
        check: What holds when it has been run again.
        after: Whether a step is done when it is killed there.
    """
    kill_at = stride // 2 + 1
    while True:
        before()
        if done(killer, argv, kill_at=kill_at, after=after(kill_at)):
            break
        look()
        assert done(killer, argv)
        check()
        kill_at += stride
    check()
    assert kill_at > stride


def strides(some: int) -> list:
    return [
        pytest.param(some, marks=pytest.mark.slow),
        pytest.param(1, marks=pytest.mark.soak),
    ]


@pytest.mark.parametrize("stride", strides(61))
def test_a_kill_at_any_step(killer, inputs, tmp_path, stride):
    assert done(killer, pack(inputs, tmp_path / "expected"))
    expected, output = contents(tmp_path / "expected"), tmp_path / "out"

    def before() -> None:
        shutil.rmtree(output, ignore_errors=True)

    def look() -> None:
        """Where there is an index, all is there."""
        for shard in range(SHARDS):
            name = layout.shard_name("data", "train", shard, SHARDS)
            if (output / layout.index_path(name)).exists():
                assert (output / name).exists()
                assert (output / segments_of(shard)).exists()

    def check() -> None:
        assert contents(output) == expected

    argv = pack(inputs, output)
    kill_everywhere(killer, argv, stride, before=before, look=look, check=check)


@pytest.mark.parametrize("stride", strides(97))
@pytest.mark.parametrize(
    ("old", "new", "more"),
    [(plain, pack, ()), (pack, plain, ()), (pack, pack, ("--length=64",))],
    ids=["records become rows", "rows become records", "other rows"],
)
def test_a_kill_at_any_step_of_a_replacement(
    killer, inputs, tmp_path, old, new, more, stride
):
    output = tmp_path / "out"
    argv = new(inputs, output, *more, "--overwrite")
    assert done(killer, old(inputs, tmp_path / "old"))

    def before() -> None:
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(tmp_path / "old", output)

    before()
    assert done(killer, argv)
    expected = numbered(contents(output))

    def check() -> None:
        assert numbered(contents(output)) == expected

    kill_everywhere(killer, argv, stride, before=before, check=check)


@pytest.mark.parametrize("stride", strides(61))
def test_a_kill_at_any_request(server, inputs, tmp_path, stride):
    """In a bucket: files are copied, and a request may be done and not answered."""
    argv, bucket = pack(inputs, OUT, "--overwrite"), server.objects.buckets
    with Killer(tmp_path) as killer:
        assert done(killer, plain(inputs, OUT))
        there = dict(bucket["bucket"])
        assert done(killer, argv)
        expected = numbered(bucket["bucket"])
        assert sum(name.endswith(".segments") for name in expected) == SHARDS

        def check() -> None:
            assert numbered(bucket["bucket"]) == expected
            assert not verify(OUT, workers=1).findings

        kill_everywhere(
            *(killer, argv, stride),
            before=lambda: bucket.update(bucket=dict(there)),
            check=check,
            after=lambda kill_at: kill_at % 2 == 0,
        )


@pytest.mark.slow
def test_a_segment_index_of_another_content_in_a_bucket(server, inputs):
    """A bucket keeps checksums: also one of the same size is not taken as finished."""
    prepared = prepared_of(packing(inputs, OUT))
    convert_shard(prepared, 1)
    assert finished_shard(prepared, 1) is not None
    path = f"out/{segments_of(1)}"
    data = server.objects.buckets["bucket"][path].data
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    server.objects.put("bucket", path, damaged)
    assert finished_shard(prepared, 1) is None
    convert(packing(inputs, OUT))
    assert not verify(OUT, workers=1).findings
    # A listing tells: no file is read.
    server.objects.put("bucket", path, damaged)
    (finding,) = verify(OUT, workers=1, quick=True).findings
    assert f"out/{finding.path}" == path
    assert finding.what == "segment index is not the file that was written"


def test_inputs_whose_pattern_would_match_a_segment_index(inputs, tmp_path):
    """The next run would take it for an input."""
    source = tmp_path / "in" / "index" / "a.segments"
    source.parent.mkdir(parents=True)
    shutil.copy(inputs, source)
    pattern = f"{tmp_path}/*/index/*.segments"
    convert(job_of(pattern, tmp_path / "records"))
    with pytest.raises(InputError, match="the output lies among the inputs"):
        convert(packing(pattern, tmp_path / "rows"))
