"""Packing that is killed at any step: shards and segment indexes fit in the end."""

import itertools
import random
import re
import shutil

import pytest

from gristmill import dataset
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import verify
from gristmill.transforms.conversion.make_shards import convert_shard
from gristmill.transforms.jobs.pack_options import PackOptions
from tests.faults.kills import Killer
from tests.support.conversion import convert, finished_shard, job_of, prepared_of
from tests.support.editions import files_of
from tests.support.records import frames_of

SHARDS, OUT = 3, "gs://bucket/out"
COMMON = f"--name=data --num-shards={SHARDS} --workers=1"
CONVERT, PACK = "convert", "pack --column=ids --length=32"


def packing(inputs, output):
    pack = PackOptions(length=32, column="ids")
    return job_of(inputs, output, plan=("num_shards", SHARDS), pack=pack)


def shard_name(shard):
    return layout.shard_name("data", "train", shard, SHARDS)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    path, chance = tmp_path_factory.mktemp("in") / "a.tfrecord", random.Random(7)
    lengths = [chance.choice((0, 5, 17, 40, 130)) for _ in range(90)]
    documents = [{"ids": [chance.randrange(1000) for _ in range(n)]} for n in lengths]
    path.write_bytes(frames_of([dataset.encode_example(one) for one in documents]))
    return path


def names_of(output):
    """Returns the names of all files, whatever the ids of their writes."""
    return {re.sub("[0-9a-f]{16}", "ID", name) for name in files_of(output)}


@pytest.mark.parametrize(
    "stride",
    [
        pytest.param(79, marks=pytest.mark.slow),
        pytest.param(1, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        *((None, PACK), (CONVERT, PACK), (PACK, CONVERT)),
        (PACK, "pack --column=ids --length=64"),
    ],
    ids=["first", "records become rows", "rows become records", "other rows"],
)
def test_a_kill_at_any_step(output, inputs, tmp_path, old, new, stride):
    """In a bucket, a request may be done and not answered."""
    storage = storage_for(output)
    with Killer(tmp_path) as killer:

        def done(words, **options):
            """Runs a command, and returns whether it ended by itself, which is well."""
            command, *given = f"{words} {COMMON}".split()
            ended = killer.run([command, str(inputs), output, *given], **options)
            assert ended.status in (0, -9), ended.error
            return ended.status == 0

        if old is not None:
            new += " --overwrite"
            assert done(old)
        before = files_of(output)
        assert done(new)
        made, expected = files_of(output), names_of(output)
        packed = sum(name.endswith(".segments") for name in expected)
        assert packed == ("pack" in new) * SHARDS
        for kill_at in itertools.count(stride // 2 + 1, stride):
            for name in files_of(output):
                storage.delete(f"{output}/{name}")
            for name, data in before.items():
                storage.write(f"{output}/{name}", data)
            if done(new, kill_at=kill_at, after=kill_at % 2 == 0):
                break
            left = files_of(output)
            for shard in map(shard_name, range(SHARDS) if old is None else ()):
                # Where there is an index, all is there.
                if layout.index_path(shard) in left:
                    assert {shard, layout.segments_path(shard)} <= left.keys()
            assert done(new)
            assert names_of(output) == expected
            assert not verify(output, workers=1).findings
            assert old is not None or files_of(output) == made
        assert kill_at > stride


@pytest.mark.slow
def test_a_segment_index_of_another_content_in_a_bucket(server, inputs):
    """A bucket keeps checksums: also one of the same size is not taken as finished."""
    prepared = prepared_of(packing(inputs, OUT))
    convert_shard(prepared, 1)
    assert finished_shard(prepared, 1) is not None
    path = f"out/{layout.segments_path(shard_name(1))}"
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
    with pytest.raises(InputError, match="the output lies among the inputs"):
        convert(packing(f"{tmp_path}/*/index/*.segments", tmp_path / "rows"))
