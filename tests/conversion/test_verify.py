"""Verifying: every file that is damaged is named, on a disk and in a bucket."""

import collections
import pathlib
import re
import shutil
import tempfile

import pytest

from gristmill.dataset import StorageError
from gristmill.dataset.metadata import layout
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.text.printer import text_of
from gristmill.transforms import Finding, VerifyDataset, VerifyResult
from gristmill.transforms.checking.verification import plan_verify
from gristmill.transforms.checking.verify_shard import verify_shard
from tests.changes.changes import attach
from tests.servers.buckets import upload
from tests.support.conversion import dataset_of
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import array_record_bytes, text_records
from tests.support.watched import at_storage

RECORDS = text_records(1500)
SHARDS = [layout.shard_name("data", "train", shard, 3) for shard in range(3)]
INDEXES = [layout.index_path(shard) for shard in SHARDS]
TABLE, EXTRA = (
    layout.table_path("data", "train"),
    "data-train.array_record-00003-of-00008",
)
CLOUD = "gs://bucket/sets/data"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return dataset_of(tmp_path_factory.mktemp("whole"), RECORDS)


@pytest.fixture
def dataset(whole, tmp_path):
    return pathlib.Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def server(server, whole):
    upload(server, whole, "sets/data")
    server.objects.page_size = 3
    return server


def check(place, **options):
    return verify(str(place), workers=1, **options)


def flip(at=None):
    """Returns what flips a bit of a file; of that in its middle by default."""

    def change(data):
        place = (len(data) // 2 if at is None else at) % len(data)
        return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]

    return change


def harm(place, name, change):
    """Changes a file of the dataset; deletes it if nothing is left."""
    if isinstance(place, pathlib.Path):
        path = place / name
        changed = change(path.read_bytes() if path.exists() else b"")
        path.unlink(missing_ok=True)
        if changed is not None:
            path.write_bytes(changed)
        return
    found = place.objects.buckets["bucket"].get(f"sets/data/{name}")
    changed = change(found.data if found else b"")
    if changed is None:
        place.objects.delete("bucket", f"sets/data/{name}", {})
    else:
        place.objects.put("bucket", f"sets/data/{name}", changed)


# A file, what is done to it, what is said, and which listings tell it.
Harm = collections.namedtuple("Harm", "path change what told_by", defaults=[""])


def others(_):
    """Returns a shard that is sound in itself, but holds other records."""
    records = [RECORDS[1], RECORDS[0], *RECORDS[2:500]]
    with tempfile.TemporaryDirectory() as folder:
        return array_record_bytes(records, options="group_size:1", folder=folder)


BOTH = "disk bucket"
HARMS = {
    "gone": Harm(SHARDS[0], lambda _: None, "shard is missing", BOTH),
    "cut": Harm(SHARDS[2], lambda data: data[:-65536], "the wrong size", BOTH),
    "longer": Harm(SHARDS[1], lambda data: data + b"more", "the wrong size", BOTH),
    "flipped": Harm(SHARDS[1], flip(), "record|not the file that was", "bucket"),
    "padding": Harm(
        SHARDS[1], flip(-30_000), "outside of its records|the file that was", "bucket"
    ),
    "other records": Harm(
        SHARDS[0],
        others,
        "list other chunks|record 0 is not the one|not the file that was written",
        "bucket",
    ),
    "extra": Harm(EXTRA, lambda _: b"x", "is named like a shard of train", BOTH),
    "index gone": Harm(INDEXES[1], lambda _: None, "shard index is missing", BOTH),
    **{f"index at {at}": Harm(INDEXES[0], flip(at), "") for at in (3, 70, 1000, -3)},
    "table": Harm(TABLE, flip(100), "table of shards", BOTH),
    "table cut": Harm(TABLE, lambda data: data[:-1], "table of shards is not", BOTH),
    "totals": Harm(
        "dataset.json",
        lambda data: re.sub(rb'("raw_bytes": \d*)', rb"\g<1>1", data),
        "table of shards contradicts dataset.json",
        BOTH,
    ),
}


@pytest.mark.parametrize("harmed", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_harmed_file_is_named(request, where, harmed):
    place = request.getfixturevalue("dataset" if where == "disk" else "server")
    harm(place, harmed.path, harmed.change)
    path = place if where == "disk" else CLOUD
    named = TABLE if harmed.path == "dataset.json" else harmed.path
    for quick in (False, True):
        found = check(path, quick=quick)
        if not quick or where in harmed.told_by:
            (finding,) = found.findings
            assert finding.path == named
            assert re.search(harmed.what, finding.what)
        else:
            assert not found.findings
        if named in INDEXES and not quick:  # The shard is compared all the same.
            assert found.records == len(RECORDS)


def test_an_index_of_another_shard_is_named(dataset):
    shutil.copyfile(dataset / INDEXES[0], dataset / INDEXES[1])
    (finding,) = check(dataset).findings
    assert finding.path == INDEXES[1]
    assert finding.what == "shard index is not the one of this shard"


@pytest.mark.parametrize("indexed", [True, False])
def test_a_damaged_record_is_named_by_its_number(tmp_path, decoding, indexed):
    options = {"group_size": 1, "compression": "uncompressed"}
    dataset = dataset_of(tmp_path, RECORDS[:90], **options)
    if not indexed:  # It is compared by its chunk.
        (dataset / INDEXES[0]).unlink()
    harm(dataset, SHARDS[0], lambda data: flip(data.index(RECORDS[7]))(data))
    damaged, *missing = (f.what for f in check(dataset).findings)
    said = "record 7 is not the one" if indexed else "record 7 cannot be decoded"
    assert damaged.startswith(said)
    assert missing == ([] if indexed else ["shard index is missing"])


@pytest.mark.parametrize("failing", range(3))
def test_a_table_that_cannot_be_read_for_a_moment(dataset, monkeypatch, failing):
    """It is never passed over."""

    def fail():
        raise StorageError("cannot read the file", where=str(dataset / TABLE))

    at_storage(monkeypatch, "read", str(dataset / TABLE), fail, skip=failing)
    found = check(dataset)
    assert found.findings or found.records == len(RECORDS)


def test_leftovers_are_counted(dataset):
    place = dataset / "tmp-data-train"
    place.mkdir()
    for number in range(1_203):
        (place / f"{number:05d}").touch()
    found = check(dataset, quick=True)
    assert found.leftovers[0] == "tmp-data-train/00000"
    assert (len(found.leftovers), found.more_leftovers) == (1_000, 203)
    assert "1,203 files of a command" in text_of(found)


def test_a_damaged_column_is_attached_again_and_a_shard_is_another_matter(dataset):
    values = ["value"] * len(RECORDS)
    attach(str(dataset), values)
    (path, *_) = sorted((dataset / "columns").iterdir())
    harm(dataset, f"columns/{path.name}", flip(-9))
    harm(dataset, SHARDS[0], flip())
    found = check(dataset)
    assert f"columns/{path.name}" in [finding.path for finding in found.findings]
    cures = found.facts["to do"]
    assert len(cures) == 2
    assert "`gristmill attach --overwrite`" in cures[-1]
    attach(str(dataset), [*values[1:], "another"])
    assert len(check(dataset).findings) == 1


@pytest.mark.parametrize("argv", [IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED])
def test_on_beam(whole, dataset, tmp_path, argv):
    assert run(VerifyDataset(whole), argv=argv) == [
        VerifyResult(str(whole), 3, len(RECORDS), sum(map(len, RECORDS)), ())
    ]
    harm(dataset, SHARDS[1], flip())
    (dataset / SHARDS[2]).unlink()
    for quick in (True, False):
        (result,) = run(VerifyDataset(dataset, quick=quick), argv=argv)
        assert result.findings == check(dataset, quick=quick).findings
        assert (result.shards, result.records is None) == (3, quick)
    first, second = result.findings
    assert (first.path, "record" in first.what) == (SHARDS[1], True)
    assert second == Finding(SHARDS[2], "shard is missing")
    with pytest.raises(Exception, match="not a committed dataset"):
        run(VerifyDataset(tmp_path / "in"), argv=argv)


class TestInABucket:
    def test_a_listing_proves_all_shards(self, server):
        found = check(CLOUD, quick=True)
        assert (found.findings, found.shards) == ((), 3)
        assert found.not_checked == ("contents of indexes",)
        # Nothing but listings and the dataset's own small files.
        assert set(server.requests) == {"list", "media"}
        read = {name for kind, name, _ in server.log if kind == "media"}
        names = ("dataset.json", TABLE, "index/data-train.job.json")
        assert read == {f"sets/data/{name}" for name in names}
        # Of the dataset and its indexes, three on a page, and of what might be there
        # of columns, of damaged inputs and of unfinished files.
        assert server.requests["list"] == 2 + 2 + 1 + 1 + 2

    def test_every_byte_is_read_in_few_requests(self, server):
        tasks = plan_verify(CLOUD).tasks
        server.requests.clear()
        found = [verify_shard(task) for task in tasks]
        assert [one.findings for one in found] == [()] * 3
        assert sum(one.records for one in found) == len(RECORDS)
        # The index, the end of the shard with its footer, and the shard.
        assert server.requests == {"media": 3 * 3}

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (lambda data: data, None),  # The same bytes: all is well.
            (lambda data: data[: -1 << 16], "shard has the wrong size"),
            (flip(), "record"),
            (lambda data: None, "shard is missing"),
            # After the read that says which generation it is.
            ("replace", "while it was in use"),
            ("remove", "while it was in use"),
        ],
        ids=["same", "shorter", "flipped", "missing", "replaced", "removed"],
    )
    def test_a_shard_that_changes_meanwhile(self, server, change, what):
        """It is verified as it is at its turn, maybe hours after the listing."""
        task = [*plan_verify(CLOUD).tasks][1]
        if isinstance(change, str):
            server.fail(change, "media", name=f"data/{SHARDS[1]}", skip=1)
        else:
            harm(server, SHARDS[1], change)
        found = [str(finding) for finding in verify_shard(task).findings]
        assert len(found) == bool(what)
        assert not what or what in found[0]
