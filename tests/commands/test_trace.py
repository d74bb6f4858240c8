"""`gristmill trace`, followed to the bytes that TensorFlow reads there."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.pipelines.commands.main import cli
from tests.support.conversion import convert, job_of
from tests.support.examples import tf_example
from tests.support.records import (
    read_tfrecords,
    write_tfrecords,
)

ORDER = ("--seed", "7", "--batch-size", "16")


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> pathlib.Path:
    """A folder with TFRecords, plain and compressed, and a dataset of each."""
    folder = tmp_path_factory.mktemp("trace")
    for name, compression in (("plain", ""), ("packed", "GZIP")):
        (folder / name).mkdir()
        for number in range(3):
            records = [
                tf_example({"id": [number * 100 + i], name: [b"word " * (i % 9)]})
                for i in range(40)
            ]
            path = folder / name / f"{number}.tfrecord"
            write_tfrecords(path, records, compression=compression)
        convert(job_of(folder / name, folder / f"{name}-out", plan=("num_shards", 4)))
    return folder


def trace(*arguments: object) -> str:
    done = CliRunner().invoke(cli, ["trace", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(cli, ["trace", *map(str, arguments)])
    assert done.exit_code == 2, done.output
    return done.output


@pytest.mark.slow
def test_tensorflow_reads_the_very_record_at_the_offset(converted, tmp_path):
    dataset = loader.open(str(converted / "plain-out"))
    batches = loader.global_batches(dataset, batch_size=16, seed=7)
    for step, row in [(0, 0), (3, 15), (120_000, 5)]:
        out = trace(
            converted / "plain-out", *ORDER, "--step", step, "--row", row, "--json"
        )
        found = json.loads(out)
        source = pathlib.Path(found["source_path"]).read_bytes()
        rest = tmp_path / "rest.tfrecord"
        rest.write_bytes(source[found["source_offset_bytes"] :])
        assert read_tfrecords(rest)[0] == batches.read(step)[row]
        assert found["record"] == batches.indices(step)[row]
        assert found["epoch"] == (step * 16 + row) // 120


def test_where_a_record_is_seen(converted):
    place = converted / "plain-out"
    found = json.loads(
        trace(place, *ORDER, "--records", 77, "--stop-epoch", 4, "--json")
    )
    assert [sighting["epoch"] for sighting in found] == [0, 1, 2, 3]
    for sighting in found:
        at = ("--step", sighting["step"], "--row", sighting["row"])
        assert json.loads(trace(place, *ORDER, *at, "--json"))["record"] == 77
    text = trace(place, *ORDER, "--records", 77, "--first-epoch", 2)
    assert text == "step {step:,}, row {row:,}: epoch {epoch:,}\n".format(**found[2])
    shown = trace(place, *ORDER, "--records", 77, "--show", "--json").splitlines()
    assert json.loads(shown[1])["record"] == 77


def test_several_records(converted):
    place = converted / "plain-out"
    alone = [trace(place, *ORDER, "--records", number) for number in (3, 7, 8)]
    headed = [f"record {n}\n{one}" for n, one in zip((3, 7, 8), alone, strict=True)]
    assert trace(place, *ORDER, "--records", "3,7:9") == "".join(headed)
    lines = trace(place, *ORDER, "--records", "3,7:9", "--json").splitlines()
    assert [len(json.loads(line)) for line in lines] == [1, 1, 1]
    sources = trace(place, "--records", "3,7:9", "--json").splitlines()
    assert [json.loads(line)["record"] for line in sources] == [3, 7, 8]
    assert "--records cannot be read" in refused(place, *ORDER, "--records", "7:7")
    assert "with --of" in refused(place, *ORDER, "--records", "plain=7")


def test_a_record_of_the_remainder_is_not_seen(converted):
    place = converted / "plain-out"
    order = ("--batch-size", 100, "--shuffle", "none", "--epochs", 1)
    assert "last batch that is not full is left out" in (
        trace(place, *order, "--records", 110)
    )
    # Epochs after the last one have no batch at all: the message is true there, too.
    late = trace(place, *order, "--records", 3, "--first-epoch", 5)
    assert late.startswith("not seen in these epochs")
    assert trace(place, *order, "--records", 110, "--json") == "[]\n"
    kept = trace(place, *order, "--keep-remainder", "--records", 110)
    assert kept == "step 1, row 10: epoch 0\n"


@pytest.fixture(scope="module")
def mixture(converted) -> dict[str, loader.Dataset]:
    return {
        name: loader.open(str(converted / f"{name}-out"))
        for name in ("plain", "packed")
    }


def test_a_mixture_of_one_and_a_path_with_an_equals_sign(converted, tmp_path):
    named = f"plain={converted}/plain-out"
    place = ("--step", 5, "--row", 3, "--json")
    found = json.loads(trace(named, *ORDER, *place, "--weights", "plain=2"))
    datasets = {"plain": loader.open(converted / "plain-out")}
    batches = loader.global_batches(datasets, batch_size=16, seed=7)
    assert (found["dataset"], found["record"]) == (
        "plain",
        int(batches.indices(5).records[3]),
    )
    seen = trace(named, *ORDER, "--records", found["record"], "--of", "plain")
    assert "step 5, row 3: epoch 0" in seen
    assert "--of with one of plain" in refused(named, *ORDER, "--records", 1)
    # What is there is a path: of one dataset, or of several that are joined.
    os.symlink(converted / "plain-out", tmp_path / "day=1")
    os.symlink(converted / "packed-out", tmp_path / "day=2")
    days = [f"{tmp_path}/day=1", f"{tmp_path}/day=2"]
    for paths in (days[0], days):
        batches = loader.global_batches(loader.open(paths), batch_size=16, seed=7)
        given = [paths] if isinstance(paths, str) else paths
        found = json.loads(trace(*given, *ORDER, *place))
        assert found["record"] == int(batches.indices(5)[3])
    assert "--weights is for a mixture" in refused(
        *days, *ORDER, *place[:4], "--weights", "a=1"
    )
    assert "need names" in refused(named, days[0], *ORDER, *place[:4])


def test_the_state_of_a_feed_says_the_order(converted, mixture, tmp_path):
    single = loader.global_batches(
        mixture["plain"], batch_size=8, seed=3, shuffle="block", epochs=2
    )
    mixed = loader.global_batches(
        mixture, batch_size=8, weights={"plain": 2, "packed": 1}
    )
    mixed = mixed.then(weights={"plain": 1, "packed": 5}, step=6)
    places = [f"{name}={converted}/{name}-out" for name in mixture]
    for batches, datasets in ((single, [converted / "plain-out"]), (mixed, places)):
        state = tmp_path / "feed.json"
        with batches.feed(host=(0, 1), start_step=9) as feed:
            state.write_text(json.dumps(feed.get_state()))
        for step in (2, 7):
            at = ("--step", step, "--row", 5, "--json")
            found = json.loads(trace(*datasets, "--state", state, *at))
            where = batches.locate(step, 5)
            assert (found["dataset"], found["record"]) == (where.dataset, where.record)
    at = ("--state", state, "--step", 0, "--row", 0)
    assert "datasets with other names" in refused(converted / "plain-out", *at)
    swapped = [places[0].replace("plain-out", "packed-out"), places[1]]
    swapped_out = refused(*swapped, *at)
    assert "does not match the records or the order" in swapped_out
    assert "exclude each other" in refused(*places, *at, "--seed", "1", "--epochs", "2")
    state.write_text('{"version": 1, "step": 0}')
    assert "is not as it was written" in refused(*places, *at)
    for text in ("{", "[" * 100_000):
        state.write_text(text)
        assert "cannot be read" in refused(*places, *at)


@pytest.mark.slow
def test_it_imports_no_heavy_library(converted):
    given = ["trace", f"{converted}/plain-out", *ORDER, "--step", "0", "--row", "0"]
    code = (
        "import atexit, sys\nfrom gristmill.pipelines.commands.main import main\n"
        "heavy = {'apache_beam', 'tensorflow', 'jax', 'grain'}\n"
        f"atexit.register(lambda: print(heavy & {{*sys.modules}}))\nmain({given!r})\n"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "frame at byte offset" in out
    assert out.splitlines()[-1] == "set()"
