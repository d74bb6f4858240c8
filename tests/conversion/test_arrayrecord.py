"""ArrayRecord files and datasets as inputs: the same records, or a clear error."""

import dataclasses
import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptShardError,
    DataLossError,
    InputError,
    JobChangedError,
    NotADatasetError,
    StorageError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.shards import open_shard as open_shard_module
from gristmill.transforms.sources.shards.source_split import (
    SourceSplit,
    find_split,
)
from tests.conversion.format_files import check_meets, listed, read_cut
from tests.conversion.tfds_data import make_tfds, read_splits
from tests.servers.buckets import upload
from tests.support.conversion import (
    convert,
    dataset_of,
    job_of,
    prepared_of,
    read_output,
    shards_of,
    skipped_in,
    varied_records,
)
from tests.support.records import (
    AWKWARD_RECORDS,
    footer_of,
    read_array_records,
    write_array_records,
)

RECORDS = [*varied_records(400, seed=1), *AWKWARD_RECORDS]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files with chunks of one record, of some, of so many that a file is one."""
    folder = tmp_path_factory.mktemp("shards")
    options = ("group_size:1,zstd:3", "group_size:9,snappy", "group_size:1000,brotli:5")
    for number, encoding in enumerate((*options, "group_size:30")):
        path = folder / f"{number}.array_record"
        write_array_records(path, RECORDS[number::4], options=encoding)
    return folder


@given(st.lists(st.floats(0, 1), max_size=9))
def test_any_cuts_give_every_record_once(files, cuts):
    inputs = listed(f"{files}/*")
    found = read_cut(inputs, [int(cut * int(inputs.sizes.sum())) for cut in cuts])
    assert found.records == [record for n in range(4) for record in RECORDS[n::4]]
    check_meets(found.spans, inputs)


def test_damage_is_left_out_by_chunk(tmp_path):
    records = [random.Random(n).randbytes(500) for n in range(1200)]
    path = tmp_path / "a.array_record"
    write_array_records(path, records, options="group_size:10,zstd:3")
    data = bytearray(path.read_bytes())
    offsets = footer_of(bytes(data)).chunk_offsets.tolist()
    for chunk in (30, 31, 77):
        data[(offsets[chunk] + offsets[chunk + 1]) // 2] ^= 4
    path.write_bytes(data)
    # One cut is within a damaged chunk.
    plan = {"plan": ("num_shards", 11), "on_corrupt": "skip"}
    result = convert(job_of(str(path), tmp_path / "out", **plan))
    kept = [*records[:300], *records[320:770], *records[780:]]
    assert read_output(tmp_path / "out") == kept
    # Neighbours are one region.
    regions = [(offsets[30], offsets[32]), (offsets[77], offsets[78])]
    found = skipped_in(tmp_path / "out")
    assert [(one["begin_bytes"], one["end_bytes"]) for one in found] == regions
    assert result.manifest.splits["train"].skipped_regions == 2


def test_a_record_that_is_not_the_one_of_the_index(tmp_path):
    records = [bytes([n]) * 500 for n in range(200)]
    dataset = dataset_of(tmp_path, records, compression="uncompressed", group_size=5)
    path = dataset / shards_of(dataset)[1]
    data = bytearray(path.read_bytes())
    data[data.index(bytes([90]) * 400)] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShardError, match=r"record \d+\n.*as in the shard's ind"):
        convert(job_of(str(dataset), tmp_path / "no"))
    convert(job_of(str(dataset), tmp_path / "out2", on_corrupt="skip"))
    found = read_output(tmp_path / "out2")
    lost = [record for record in records if record not in found]
    assert bytes([90]) * 500 in lost
    assert found == [record for record in records if record not in lost]
    assert len(lost) == 5  # Those of its chunk.


@pytest.mark.parametrize("kind", ["files", "dataset"])
def test_a_file_without_footer(tmp_path, kind):
    records = varied_records(300, seed=4)
    dataset = dataset_of(tmp_path, records)
    path = dataset / shards_of(dataset)[1]
    data, whole = bytearray(path.read_bytes()), read_array_records(path)
    data[-65_536:] = bytes(65_536)
    path.write_bytes(data)
    inputs = str(dataset) if kind == "dataset" else f"{dataset}/*.array_record*"
    plan = ("num_shards", 5)
    with pytest.raises(CorruptShardError, match="footer"):
        convert(job_of(inputs, tmp_path / "no", plan=plan))
    convert(job_of(inputs, tmp_path / "out2", plan=plan, on_corrupt="skip"))
    found = read_output(tmp_path / "out2")
    if kind == "dataset":  # Its index knows where the chunks are.
        assert found == records
        return
    first = records.index(whole[0])
    assert found == [*records[:first], *records[first + len(whole) :]]
    lost = skipped_in(tmp_path / "out2")
    assert sum(one["end_bytes"] - one["begin_bytes"] for one in lost) == len(data)


def test_a_dataset_whose_shard_was_cut(tmp_path):
    records = varied_records(600, seed=4)
    dataset = dataset_of(tmp_path, records, group_size=4)
    path = dataset / shards_of(dataset)[1]
    whole = read_array_records(path)
    path.write_bytes(path.read_bytes()[:70_000])
    with pytest.raises(InputError, match=r"wrong size.*\n.*00001-of"):
        convert(job_of(str(dataset), tmp_path / "no"))
    convert(job_of(str(dataset), tmp_path / "out2", on_corrupt="skip"))
    found, first = read_output(tmp_path / "out2"), records.index(whole[0])
    kept = len(found) - (len(records) - len(whole))
    assert 0 < kept < len(whole)
    assert found == [*records[: first + kept], *records[first + len(whole) :]]
    assert len(skipped_in(tmp_path / "out2")) == 1


def test_shards_that_have_changed_places(tmp_path):
    """Their records have the same digest together, in another order."""
    dataset = dataset_of(tmp_path, varied_records(90, seed=1))
    first, second, _ = shards_of(dataset)
    for path in (first, layout.index_path(first)):
        other = dataset / path.replace("-00000-of", "-00001-of")
        (dataset / path).rename(tmp_path / "aside")
        other.rename(dataset / path)
        (tmp_path / "aside").rename(other)
    assert (dataset / first).stat().st_size == (dataset / second).stat().st_size
    with pytest.raises(CorruptShardError, match="that of another shard"):
        convert(job_of(str(dataset), tmp_path / "no"))


def test_an_index_that_is_gone(tmp_path):
    records = varied_records(30, seed=1)
    dataset = dataset_of(tmp_path, records)
    (dataset / layout.index_path(shards_of(dataset)[0])).unlink()
    with pytest.raises(StorageError, match="give them by a pattern"):
        convert(job_of(str(dataset), tmp_path / "no"))
    convert(job_of(f"{dataset}/*.array_record*", tmp_path / "out2"))
    assert read_output(tmp_path / "out2") == records


def test_what_is_damaged_in_transit_is_read_again(tmp_path, server):
    upload(server, dataset_of(tmp_path, RECORDS), "d")
    inputs = prepared_of(job_of("gs://bucket/d", tmp_path / "new")).files
    for skip in range(5):
        open_shard_module.kept_shard.cache_clear()
        server.faults.clear()
        server.fail("flip", "media", name="-00000-of-", skip=skip)
        assert read_cut(inputs).records == RECORDS


# Datasets: all their splits, in order, proved to be the same records.

SPLITS = {
    split: varied_records(count, seed=count)
    for split, count in (("train", 300), ("test", 40))
}


@pytest.fixture
def dataset(tmp_path):
    for split, records in SPLITS.items():
        dataset_of(tmp_path, records, split=split)
    return tmp_path / "out"


def reshard(source, output, **options):
    """Converts as the command does."""
    given = ConvertOptions(input=(str(source),), output=str(output), **options)
    jobs, features, tfds_directory, *_ = conversion_of(given)
    run_conversion(jobs, features=features, tfds_directory=tfds_directory)


def test_one_split_and_the_name_of_the_command(dataset, tmp_path):
    reshard(dataset, tmp_path / "new", split="test", name="other")
    made = open_manifest(tmp_path / "new")
    assert (made.name, [*made.splits]) == ("other", ["test"])
    with pytest.raises(InputError, match=r"no such split\n.*\n.*test, train"):
        reshard(dataset, tmp_path / "new", split="validation")


def test_the_output_is_not_in_the_input(dataset, tmp_path):
    (tmp_path / "link").symlink_to(dataset)
    for output in (dataset, dataset / "index", tmp_path / "link"):
        with pytest.raises(InputError, match="is the input\n"):
            reshard(dataset, output)
        with pytest.raises(InputError, match="is the input\n"):
            convert(job_of(str(dataset), output, name="new"), overwrite=True)
    assert read_output(dataset) == SPLITS["train"]


def test_what_is_not_a_whole_dataset(dataset, tmp_path):
    job = job_of(str(dataset), tmp_path / "new")
    frames = RecordOptions(input_format="tfrecord")
    with pytest.raises(InputError, match="`input_format` tfrecord"):
        find_split(str(dataset), "train", options=frames)
    shard = next(dataset.glob("*-train.array_record-00001-*"))
    shard.rename(tmp_path / "aside")
    for on_corrupt in ("fail", "skip"):
        with pytest.raises(InputError, match=r"1 of 3 shards.*missing"):
            convert(dataclasses.replace(job, on_corrupt=on_corrupt))
    (dataset / "dataset.json").unlink()
    with pytest.raises(NotADatasetError, match="unfinished conversion"):
        reshard(dataset, tmp_path / "new")
    # Shards that are there can be given by name.
    left_shards = sorted(map(str, dataset.glob("*-train.array_record*")))
    convert(job_of(left_shards, tmp_path / "some"))
    assert 0 < len(read_output(tmp_path / "some")) < len(SPLITS["train"])


def test_a_source_that_is_replaced_meanwhile(tmp_path):
    made = dataset_of(tmp_path, [b"other"] * 300)
    # A run that goes on with the work of an earlier one compares the datasets.
    reshard(made, tmp_path / "new")
    shutil.rmtree(made)
    dataset_of(tmp_path, [b"third"] * 299)
    with pytest.raises(JobChangedError):
        reshard(made, tmp_path / "new")


def test_records_are_compared_with_the_digest_of_the_source():
    source = SourceSplit("d/", "train", "sha256:", 3, 30, "ab" * 16)
    read = RecordsDigest(records=3, raw_bytes=30, low=0xABABABABABABABAB, high=0)
    whole = dataclasses.replace(read, high=read.low)
    source.check_read(whole, skipped_regions=0)
    for wrong in (read, dataclasses.replace(whole, records=2)):
        with pytest.raises(DataLossError, match="not those of the source"):
            source.check_read(wrong, skipped_regions=0)
    fewer = dataclasses.replace(whole, records=2)
    source.check_read(fewer, skipped_regions=1)
    with pytest.raises(DataLossError):
        source.check_read(read, skipped_regions=1)
    assert SourceSplit.of_spec(source.spec) == source


@pytest.mark.slow
def test_tfds_reads_what_was_made_of_its_directory(tmp_path):
    """Of TFRecords first; then of that dataset, and of its files alone."""
    made = make_tfds(tmp_path)
    reshard(made, tmp_path / "one", num_shards=4)
    expected = read_splits(tmp_path / "one")
    assert [*map(len, expected.values())] == [23, 8]
    reshard(tmp_path / "one", tmp_path / "two", num_shards=2, group_size=3)
    bare = tmp_path / "bare"
    shutil.copytree(tmp_path / "one", bare)
    (bare / "dataset.json").unlink()
    shutil.rmtree(bare / "index")
    reshard(bare, tmp_path / "three", num_shards=5)
    shard = sorted(bare.glob("*train.array_record*"))[1]
    write_array_records(shard, read_array_records(shard)[1:])
    with pytest.raises(DataLossError, match="shardLengths"):
        reshard(bare, tmp_path / "no")
    names = {path.name for path in (tmp_path / "one").glob("*.*") if path.is_file()}
    for output in ("two", "three"):
        assert read_splits(tmp_path / output) == expected
        there = {path.name for path in (tmp_path / output).iterdir()}
        assert {name for name in names if ".array_record" not in name} <= there
