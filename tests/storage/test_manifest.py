"""dataset.json: round trips, what later versions add, and lies that are refused."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from gristmill.dataset.base.errors import (
    FormatVersionError,
    InvalidDatasetError,
    NotADatasetError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    open_manifest,
    read_manifest,
    read_table,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from tests.support.shards import report


def table_of(shards: int) -> ShardTable:
    return ShardTable.of([report(shard) for shard in range(shards)])


def split_of(table: ShardTable, **changes) -> Split:
    split = Split.of_table(
        table,
        table.encode(),
        path="index/c4-train.shards.npz",
        writer_options="group_size:1,zstd:3,max_parallelism:1",
        source={"patterns": ["in/*.tfrecord"], "options": {"map": None}},
    )
    return dataclasses.replace(split, **changes)


def manifest_of(**changes) -> Manifest:
    fields = {
        "name": "c4",
        "splits": {"train": split_of(table_of(3)), "test": split_of(table_of(1))},
        "created_by": "gristmill 0.1.0",
    }
    return Manifest(**fields | changes)


def decode(data: bytes) -> Manifest:
    return Manifest.decode(data, where="c4/dataset.json")


def changed(path: str, value) -> bytes:
    """Returns a manifest with one value replaced, digest and all else kept."""
    document = json.loads(manifest_of().encode())
    *parents, last = path.split(".")
    place = document
    for parent in parents:
        place = place[parent]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document).encode()


class TestRoundTrip:
    @pytest.mark.parametrize(
        "manifest",
        [
            manifest_of(),
            manifest_of(features={"text": {"dtype": "string"}}, extra={"later": [1]}),
            manifest_of(
                splits={"train": split_of(table_of(2), extra={"later": {"a": None}})}
            ),
            manifest_of(
                splits={
                    "train": split_of(table_of(2), features={"text": {"kind": "bytes"}})
                }
            ),
            manifest_of(
                splits={
                    "train": split_of(
                        table_of(2), source={"patterns": ["caf\udce9/\ud83d*", "tür"]}
                    )
                }
            ),
        ],
        ids=["plain", "features", "split-extra", "split-features", "not-utf8"],
    )
    def test_everything_comes_back(self, manifest: Manifest):
        data = manifest.encode()
        assert decode(data) == manifest
        assert decode(data).encode() == data
        # Strict UTF-8 and plain JSON, whatever is in it.
        assert json.loads(data.decode("utf-8"))["name"] == "c4"

    def test_unknown_fields_survive_at_both_levels(self):
        document = json.loads(manifest_of().encode())
        document["tags"] = ["a", {"b": 1}]
        document["extra"] = "not ours"
        document["splits"]["train"]["sealed"] = {"by": "x"}
        document["splits"]["test"]["extra"] = [1, 2]
        again = json.loads(decode(json.dumps(document).encode()).encode())
        assert again == document

    def test_digest_is_of_the_content(self):
        digest = manifest_of().content_digest
        assert digest == manifest_of(created_by="other").content_digest
        assert (
            digest
            != manifest_of(splits={"train": split_of(table_of(3))}).content_digest
        )
        assert len(digest) == len("sha256:") + 64


def refused(data: bytes) -> str:
    with pytest.raises(InvalidDatasetError) as caught:
        decode(data)
    assert "c4/dataset.json" in str(caught.value)
    return str(caught.value)


class TestRefused:
    @pytest.mark.parametrize(
        ("path", "value", "says"),
        [
            ("format", "other", "not one of gristmill's"),
            ("format", ..., "not one of gristmill's"),
            ("name", ..., "name"),
            ("name", "a/b", "name"),
            ("name", 5, ""),
            ("splits", ..., "splits"),
            ("splits", [], ""),
            ("splits", {"a/b": {}}, "split name"),
            ("splits.train", 5, ""),
            ("splits.train", "text", ""),
            ("splits.train.records", ..., "records"),
            ("splits.train.records", -1, "count"),
            ("splits.train.records", True, "count"),
            ("splits.train.records", 1 << 62, "count"),
            ("splits.train.records_digest", 5, "text"),
            ("splits.train.records_digest", "0" * 32, "content_digest"),
            ("splits.train.source", [], "source"),
            ("splits.train.source", ..., "source"),
            ("features", "text", ""),
            ("splits.train.features", ["text"], "features"),
            ("splits.train.table", "../other.npz", "outside"),
            ("splits.train.table", "/etc/passwd", "outside"),
            ("records", 44, "the records of dataset.json does not fit"),
            ("raw_bytes", ..., "the raw_bytes of dataset.json does not fit"),
            ("splits.train.file_bytes", 0, "the file_bytes of dataset.json does not"),
            ("content_digest", ..., "content_digest"),
        ],
    )
    def test_contradictions(self, path: str, value, says: str):
        assert says in refused(changed(path, value))

    @pytest.mark.parametrize("version", [0, 2, None, True, "1", 1.5])
    def test_other_versions_with_the_reason(self, version):
        with pytest.raises(FormatVersionError, match="another version") as caught:
            decode(changed("format_version", version))
        assert caught.value.expected == "1"
        assert "convert again" in str(caught.value.cure)

    @pytest.mark.parametrize(
        "data",
        [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, changed("x", 1)[:-3]],
        ids=range(7),
    )
    def test_other_files(self, data: bytes):
        assert "dataset.json is not" in refused(data)

    def test_no_split_at_all(self):
        """What was begun was given up, and nothing is committed."""
        manifest = dataclasses.replace(
            manifest_of(splits={}), spent=frozenset({"0123456789abcdef"})
        )
        assert decode(manifest.encode()) == manifest
        nothing = dataclasses.replace(manifest, spent=frozenset())
        assert "no split" in refused(nothing.encode())


SECOND, THIRD = (f"train.{number:016d}" for number in (2, 3))


def grown(*, editions: int = 3, **changes) -> Split:
    """Returns a split of some editions, each with tables of its own."""
    parts = []
    for number in range(1, editions + 1):
        table = table_of(number)
        write = f"{number:016d}" if number > 1 else ""
        fields = {
            "table": layout.table_path("c4", layout.write_key("train", write)),
            "source": {"job": f"{number:016d}"},
            "edition": number,
            "write": write,
        }
        parts.append(dataclasses.replace(split_of(table), **fields))
    return Split.of_editions(parts, **changes)


class TestEditions:
    def test_round_trip(self):
        splits = {"train": grown(extra={"later": 1}), "test": split_of(table_of(1))}
        manifest = manifest_of(splits=splits)
        assert decode(manifest.encode()) == manifest
        assert manifest.editions.keys() == {*("train", SECOND, THIRD, "test")}
        assert manifest.find("train") == splits["train"]
        assert manifest.find(THIRD) == splits["train"].editions[2]
        assert manifest.find(f"train.{4:016d}") is None

    def test_shards_are_of_the_editions_in_order(self):
        # Editions of one, two and three shards.
        assert [*map(grown().edition_of, range(6))] == [1, 2, 2, 3, 3, 3]

    def test_numbers_and_what_was_replaced_come_back(self):
        parts = grown().editions
        split = dataclasses.replace(
            Split.of_editions([parts[2], parts[1]]),
            replaced=(grown(), parts[0]),
            last_edition=7,
        )
        manifest = manifest_of(splits={"train": split})
        document = json.loads(manifest.encode())
        assert document["format_version"] == 1
        fields = document["splits"]["train"]
        assert [one.get("edition") for one in fields["editions"]] == [3, None]
        assert (fields["last_edition"], len(fields["replaced"])) == (7, 2)
        assert decode(manifest.encode()) == manifest
        assert manifest.editions.keys() == {SECOND, THIRD}
        assert manifest.known.keys() == {"train", SECOND, THIRD}

    def test_an_edition_of_records_that_stay(self):
        removed = {"edition": 1, "records": 2, "list": f"index/c4-{SECOND}.removed.npz"}
        split = dataclasses.replace(grown().editions[1], removed=removed)
        manifest = manifest_of(splits={"train": split})
        assert decode(manifest.encode()) == manifest
        assert json.loads(manifest.encode())["splits"]["train"]["edition"] == 2

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda s: s.update(records=s["records"] + 1), "records of a split"),
            (lambda s: s.update(records_digest="0" * 32), "records_digest of a"),
            (lambda s: s["editions"].reverse(), "shards_digest of a split"),
            (lambda s: s.pop("shards"), "shards"),
            (lambda s: s.update(editions=[]), "table"),
            (lambda s: s.update(editions={}), "editions must be a list"),
            (lambda s: s["editions"].append(None), "NoneType"),
            (lambda s: s["editions"][1].update(editions=s["replaced"] * 2), "editions"),
            (lambda s: s["editions"][1].pop("table"), "table"),
            (lambda s: s["editions"][1].update(table="../a.npz"), "outside"),
            (lambda s: s["editions"][1].update(records=-1), "must be a count"),
            (lambda s: s["editions"][0].update(edition=2), "have one number"),
            (lambda s: s["editions"][0].update(edition=True), "must be a count"),
            (lambda s: s["editions"][0].update(removed=[]), "removed"),
            (lambda s: s["editions"][0].update(removed={"edition": "1"}), "removed"),
            (lambda s: s.update(last_edition="x"), "last_edition"),
            (lambda s: s.update(replaced={}), "replaced"),
            (lambda s: s["replaced"][0].update(records=-1), "must be a count"),
            (lambda s: s["replaced"][0].update(table="../a.npz"), "outside"),
        ],
    )
    def test_contradictions(self, change, says: str):
        parts = grown().editions
        split = dataclasses.replace(
            Split.of_editions([parts[2], parts[1]]), replaced=(parts[0],)
        )
        document = json.loads(manifest_of(splits={"train": split}).encode())
        change(document["splits"]["train"])
        assert says in refused(json.dumps(document).encode())


class TestOnDisk:
    def commit(self, root: pathlib.Path, table: ShardTable, **changes) -> Split:
        data = table.encode()
        split = split_of(table, **changes)
        (root / "index").mkdir(parents=True, exist_ok=True)
        (root / split.table).write_bytes(data)
        manifest = Manifest(name="c4", splits={"train": split})
        (root / layout.DATASET_JSON).write_bytes(manifest.encode())
        return split

    def test_a_dataset_is_opened(self, tmp_path: pathlib.Path):
        self.commit(tmp_path, table_of(3))
        manifest = open_manifest(str(tmp_path))
        assert manifest == read_manifest(str(tmp_path))
        table = read_table(str(tmp_path), manifest.splits["train"])
        assert table.records.tolist() == [10, 11, 12]

    def test_a_directory_without_dataset_json_is_none(self, tmp_path: pathlib.Path):
        for path in (tmp_path, tmp_path / "missing"):
            assert read_manifest(str(path)) is None
            with pytest.raises(NotADatasetError, match="not a committed") as caught:
                open_manifest(str(path))
            assert "gristmill index" in str(caught.value)

    def test_an_unfinished_one_says_how_to_go_on(self, tmp_path: pathlib.Path):
        (tmp_path / "index").mkdir()
        (tmp_path / "index" / "c4-train.job.json").write_text("{}")
        with pytest.raises(NotADatasetError, match="unfinished conversion") as caught:
            open_manifest(str(tmp_path))
        assert "gristmill convert" in str(caught.value)

    def test_another_table_is_refused(self, tmp_path: pathlib.Path):
        split = self.commit(tmp_path, table_of(3))
        path = tmp_path / split.table
        good = path.read_bytes()
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 1
        for data in (
            good[:-1],
            good + b"\0",
            bytes(flipped),
            table_of(2).encode(),
            b"",
        ):
            path.write_bytes(data)
            with pytest.raises(InvalidDatasetError, match="not the one") as caught:
                read_table(str(tmp_path), split)
            assert "crc32c" in str(caught.value)

    @pytest.mark.parametrize(
        "changes",
        [
            {"shards": 4},
            {"raw_bytes": 5},
            {"records_digest": "0" * 32},
            {"skipped_regions": 5},
        ],
    )
    def test_a_table_with_other_totals_is_refused(self, tmp_path, changes: dict):
        split = self.commit(tmp_path, table_of(3), **changes)
        with pytest.raises(InvalidDatasetError, match="contradicts"):
            read_table(str(tmp_path), split)
