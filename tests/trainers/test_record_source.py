import dataclasses
import pathlib
import pickle
import subprocess
import sys

import grain
import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InputError,
)
from tests.support.datasets import convert
from tests.support.open_files import open_files
from tests.support.records import text_records, write_array_records

FILES = (text_records(40, seed=1), [], text_records(25, seed=2))
RECORDS = [record for file in FILES for record in file]


@dataclasses.dataclass
class Instruction:
    filename: object
    skip: int
    take: int
    examples_in_shard: int


@pytest.fixture(scope="module", params=["group_size:1", "group_size:4"])
def paths(request, tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("plain")
    found = [str(folder / f"{number}.array_record") for number in range(len(FILES))]
    for path, records in zip(found, FILES, strict=True):
        write_array_records(path, records, options=request.param)
    return found


FORMS = {
    "path": lambda paths: paths[0],
    "pathlib": lambda paths: pathlib.Path(paths[2]),
    "list": list,
    "tuple": lambda paths: (paths[2], pathlib.Path(paths[0])),
    "twice": lambda paths: [paths[0], paths[0]],
    "range": lambda paths: f"{paths[0]}[3:11]",
    "ranges": lambda paths: [f"{paths[2]}[20:25]", paths[0], f"{paths[2]}[0:20]"],
    "empty range": lambda paths: [f"{paths[2]}[7:7]", f"{paths[0]}[0:1]"],
    "instruction": lambda paths: Instruction(paths[0], 5, 30, 40),
    "instructions": lambda paths: [
        Instruction(paths[2], 24, 1, 25),
        Instruction(pathlib.Path(paths[0]), 0, 40, 40),
        paths[2],
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_paths_reads_as_with_grain(paths: list[str], form: str) -> None:
    given = FORMS[form](paths)
    theirs = grain.sources.ArrayRecordDataSource(given)
    ours = loader.ArrayRecordDataSource(given)
    expected = [bytes(record) for record in theirs]
    assert len(ours) == len(theirs) == len(expected)
    assert list(ours) == [ours[i] for i in range(len(ours))] == expected
    keys = np.random.default_rng(0).integers(0, len(expected), 30).tolist()
    assert ours.__getitems__(keys) == list(theirs.__getitems__(keys))
    assert ours.__getitems__([]) == []
    assert repr(ours) == repr(theirs)
    assert list(ours.paths) == list(theirs.paths)
    assert pickle.loads(pickle.dumps(ours)).__getitems__(keys) == ours.__getitems__(
        keys
    )


def test_ranges_open_no_file_before_they_are_read() -> None:
    source = loader.ArrayRecordDataSource("/nowhere/x.array_record[2:5]")
    assert len(source) == 3
    with pytest.raises(OSError, match="nowhere"):
        source[0]


def test_range_past_the_end_of_a_file_is_an_error(paths: list[str]) -> None:
    source = loader.ArrayRecordDataSource(f"{paths[0]}[30:41]")
    with pytest.raises(CorruptShardError, match="41 records"):
        source[0]


@pytest.mark.parametrize("key", [-1, 65, np.int64(65), 1 << 70])
def test_keys_out_of_range(paths: list[str], key: int) -> None:
    source = loader.ArrayRecordDataSource(paths)
    for error in (IndexError, ValueError):
        with pytest.raises(error, match="out of range"):
            source[key]
    with pytest.raises(IndexError, match="out of range"):
        source.__getitems__([0, key])


@pytest.mark.parametrize("given", [[], 3, None, [3], [["a"]], b"bytes"])
def test_what_is_no_path(given: object) -> None:
    with pytest.raises(InputError, match="paths of a data source"):
        loader.ArrayRecordDataSource(given)


def test_converted_files_are_checked(tmp_path: pathlib.Path) -> None:
    place = pathlib.Path(convert(tmp_path, FILES, compression="uncompressed"))
    found = sorted(place.glob("*.array_record-*"))
    data = bytearray(found[0].read_bytes())
    data[data.index(RECORDS[7])] ^= 1
    found[0].write_bytes(data)
    source = loader.ArrayRecordDataSource(found)
    assert source[6] == RECORDS[6]
    with pytest.raises(CorruptShardError, match="record 7 of the shard"):
        source[7]
    assert loader.ArrayRecordDataSource(found, verify="never")[7] != RECORDS[7]


def test_context_manager_closes_files(paths: list[str]) -> None:
    def opened() -> set[str]:
        return {path for _, path in open_files()} & set(paths)

    with loader.ArrayRecordDataSource(paths) as source:
        source[0]
        assert opened() == set(paths)
    assert not opened()
    assert source[64] == RECORDS[64]


def test_iter_dataset_with_threads_and_batches(paths: list[str]) -> None:
    def pipeline(source: object) -> list[list[bytes]]:
        dataset = grain.MapDataset.source(source).shuffle(7).repeat(2)
        return [list(b) for b in dataset.batch(8, batch_fn=list).to_iter_dataset()]

    ours = pipeline(loader.ArrayRecordDataSource(paths))
    assert ours == pipeline(grain.sources.ArrayRecordDataSource(paths))


def test_data_loader_checkpoint_moves_from_one_source_to_the_other(
    paths: list[str],
) -> None:
    def iterator(source: object) -> object:
        sampler = grain.samplers.IndexSampler(
            num_records=65, shuffle=True, seed=3, num_epochs=1
        )
        return iter(grain.DataLoader(data_source=source, sampler=sampler))

    theirs = iterator(grain.sources.ArrayRecordDataSource(paths))
    for _ in range(20):
        next(theirs)
    ours = iterator(loader.ArrayRecordDataSource(paths))
    ours.set_state(theirs.get_state())
    assert list(ours) == list(theirs)


@pytest.mark.slow
def test_guide_pipeline_with_workers_in_a_plain_script(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "one.array_record"
    write_array_records(path, RECORDS)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "import grain\n"
        "from gristmill.loader import ArrayRecordDataSource\n"
        "if __name__ == '__main__':\n"
        "    source = ArrayRecordDataSource(sys.argv[1:])\n"
        "    dataset = grain.MapDataset.source(source).shuffle(42).to_iter_dataset()\n"
        "    options = grain.multiprocessing.MultiprocessingOptions(num_workers=2)\n"
        "    records = list(dataset.mp_prefetch(options))\n"
        "    sys.stdout.buffer.write(b'\\n'.join(sorted(records)))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(path)],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.split(b"\n") == sorted(RECORDS)
