"""Grain's source of ArrayRecord files, by gristmill's reader."""

import pathlib
import pickle
import types

import grain
import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import CorruptShardError, InputError
from tests.support.datasets import convert
from tests.support.open_files import open_files
from tests.support.records import text_records, write_array_records
from tests.support.told import told

FILES = (text_records(40, seed=1), [], text_records(25, seed=2))
RECORDS = [record for file in FILES for record in file]


def instruction(filename, skip, take, examples):
    return types.SimpleNamespace(
        filename=filename, skip=skip, take=take, examples_in_shard=examples
    )


@pytest.fixture(scope="module", params=["group_size:1", "group_size:4"])
def paths(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    found = [str(folder / f"{number}.array_record") for number in range(len(FILES))]
    for path, records in zip(found, FILES, strict=True):
        write_array_records(path, records, options=request.param)
    return found


FORMS = {
    "path": lambda a, b, c: a,
    "list": lambda *paths: list(paths),
    "tuple": lambda a, b, c: (c, pathlib.Path(a)),
    "twice": lambda a, b, c: [a, a],
    "range": lambda a, b, c: f"{a}[3:11]",
    "ranges": lambda a, b, c: [f"{c}[20:25]", a, f"{c}[7:7]", f"{c}[0:20]"],
    "instruction": lambda a, b, c: instruction(a, 5, 30, 40),
    "instructions": lambda a, b, c: [
        *(instruction(c, 24, 1, 25), instruction(pathlib.Path(a), 0, 40, 40), c)
    ],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_paths_reads_as_with_grain(paths, form):
    theirs = grain.sources.ArrayRecordDataSource(form(*paths))
    ours = loader.ArrayRecordDataSource(form(*paths))
    expected = [bytes(record) for record in theirs]
    assert len(ours) == len(theirs) == len(expected)
    assert list(ours) == [ours[i] for i in range(len(ours))] == expected
    keys = np.random.default_rng(0).integers(0, len(expected), 30).tolist()
    taken = list(theirs.__getitems__(keys))
    assert ours.__getitems__(keys) == taken
    assert pickle.loads(pickle.dumps(ours)).__getitems__(keys) == taken
    assert ours.__getitems__([]) == []
    assert repr(ours) == repr(theirs)
    assert list(ours.paths) == list(theirs.paths)


def test_a_range_opens_no_file_before_it_is_read_and_ends_in_it(paths):
    source = loader.ArrayRecordDataSource("/nowhere/x.array_record[2:5]")
    assert len(source) == 3
    with told(OSError, "nowhere"):
        source[0]
    source = loader.ArrayRecordDataSource(f"{paths[0]}[30:41]")
    with told(CorruptShardError, "41 records"):
        source[0]


@pytest.mark.parametrize("key", [-1, 65, np.int64(65), 1 << 70])
def test_keys_out_of_range(paths, key):
    source = loader.ArrayRecordDataSource(paths)
    for error in (IndexError, ValueError):
        with told(error, "out of range"):
            source[key]
    with told(IndexError, "out of range"):
        source.__getitems__([0, key])


@pytest.mark.parametrize("given", [[], 3, None, [["a"]], b"bytes"])
def test_what_is_no_path(given):
    with told(InputError, "paths of a data source"):
        loader.ArrayRecordDataSource(given)


def test_converted_files_are_checked(tmp_path):
    place = pathlib.Path(convert(tmp_path, FILES, compression="uncompressed"))
    found = sorted(place.glob("*.array_record-*"))
    data = bytearray(found[0].read_bytes())
    data[data.index(RECORDS[7])] ^= 1
    found[0].write_bytes(data)
    source = loader.ArrayRecordDataSource(found)
    assert source[6] == RECORDS[6]
    with told(CorruptShardError, "record 7 of the shard"):
        source[7]
    assert loader.ArrayRecordDataSource(found, verify="never")[7] != RECORDS[7]


def test_context_manager_closes_files(paths):
    with loader.ArrayRecordDataSource(paths) as source:
        source[0]
        assert {path for _, path in open_files()} >= {*paths}
    assert not {path for _, path in open_files()} & {*paths}
    assert source[64] == RECORDS[64]


@pytest.mark.slow
def test_pipelines_and_their_states_are_those_of_grains_source(paths):
    found, iterators = [], []
    for make in (grain.sources.ArrayRecordDataSource, loader.ArrayRecordDataSource):
        dataset = grain.MapDataset.source(make(paths)).shuffle(7).repeat(2)
        batches = dataset.batch(8, batch_fn=list).to_iter_dataset()
        found.append([list(batch) for batch in batches])
        sampler = grain.samplers.IndexSampler(65, shuffle=True, seed=3, num_epochs=1)
        iterators.append(
            iter(grain.DataLoader(data_source=make(paths), sampler=sampler))
        )
    workers = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    assert [list(batch) for batch in workers] == found[0] == found[1]
    theirs, ours = iterators
    for _ in range(20):
        next(theirs)
    ours.set_state(theirs.get_state())
    assert list(ours) == list(theirs)
