"""The feed for MaxText, without MaxText: what its rows hold, and what it refuses."""

import json
import types

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from examples import maxtext_feed
from gristmill import loader
from gristmill.dataset import InputError, StateMismatchError
from tests.support.datasets import convert
from tests.support.examples import bytes_list, entry, example
from tests.support.packed import documents, pack

LENGTH, RECORDS, BATCH = 12, 53, 16


def encode(text: str) -> list[int]:
    """A token for each letter; `!` is the token 0, as with some real tokenizers."""
    return [0 if letter == "!" else ord(letter) for letter in text]


def text_of(number: int) -> str:
    return f"!{number:03}" + "!" * (number % 17)


def record_of(number: int) -> bytes:
    return example(entry("text", bytes_list([text_of(number).encode()])))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """A dataset with two splits."""
    folder = tmp_path_factory.mktemp("data")
    records = [record_of(number) for number in range(RECORDS)]
    path = convert(folder, [records])
    assert convert(folder, [records[:9]], split="validation") == path
    return path


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "fsdp"))


# The settings of MaxText 0.2.5 that matter here: its defaults, but for packing.
SETTINGS = {
    "colocated_python_data_input": False,
    "data_shuffle_seed": 0,
    "elastic_enabled": False,
    "enable_data_shuffling": True,
    "expansion_factor_real_data": -1.0,
    "global_batch_size_to_load": BATCH,
    "global_batch_size_to_train_on": BATCH,
    "grain_file_type": "arrayrecord",
    "grain_train_mixture_config_path": "",
    "grain_use_elastic_iterator": False,
    "grain_worker_count": 0,
    "max_target_length": LENGTH,
    "num_epoch": 1,
    "packing": False,
    "tokenize_train_data": True,
    "train_data_columns": ["text"],
    "train_split": "train",
    "use_dpo": False,
    "use_multimodal": False,
    "use_sft": False,
    "use_truncation": True,
}


def config_of(data: str, **changes) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**SETTINGS, "grain_train_files": data, **changes})


def test_tokens_are_masked_by_their_place():
    rows = maxtext_feed.TextRows("text", LENGTH, encode, rows=3)
    batch = rows([record_of(2), record_of(16)])
    assert set(batch) == {
        f"{side}{kind}"
        for side in ("inputs", "targets")
        for kind in ("", "_position", "_segmentation")
    }
    for array in batch.values():
        assert (array.shape, array.dtype) == ((3, LENGTH), np.int32)
    short, long = encode(text_of(2)), encode(text_of(16))
    assert (len(short), len(long)) == (6, 20)
    assert short[-1] == short[0] == 0
    assert batch["inputs"][0].tolist() == short + [0] * 6
    assert batch["targets"][0].tolist() == short[1:] + [0] * 7
    assert batch["inputs_segmentation"][0].tolist() == [1] * 6 + [0] * 6
    assert batch["targets_segmentation"][0].tolist() == [1] * 5 + [0] * 7
    # Cut: each token of the row has a target.
    assert batch["inputs"][1].tolist() == long[:LENGTH]
    assert batch["targets"][1].tolist() == long[1 : LENGTH + 1]
    for name in ("inputs_segmentation", "targets_segmentation"):
        assert batch[name][1].all()
        assert not batch[name][2].any()  # a row without a record
    assert (batch["inputs_position"] == np.arange(LENGTH)).all()
    assert (batch["targets_position"] == np.arange(LENGTH)).all()


@pytest.mark.parametrize("number", [0, 1])
def test_rows_of_no_records_and_of_empty_texts_are_empty(number):
    rows = maxtext_feed.TextRows("text", LENGTH, encode, rows=1)
    batch = rows([example(entry("text", bytes_list([b""])))] * number)
    assert batch["inputs"].shape == (1, LENGTH)
    assert not batch["inputs_segmentation"].any()
    assert not batch["targets_segmentation"].any()


def test_each_record_is_seen_once_an_epoch(data, mesh):
    with maxtext_feed.feed_of(config_of(data, num_epoch=2), mesh, encode) as feed:
        batches = list(feed)
    assert len(batches) == 2 * RECORDS // BATCH + 1
    assert {batch["inputs"].shape for batch in batches} == {(BATCH, LENGTH)}
    filled = [int(batch["inputs_segmentation"].any(axis=1).sum()) for batch in batches]
    assert filled == [BATCH] * (len(filled) - 1) + [2 * RECORDS % BATCH]
    texts = [batch["inputs"][:, 1:4] for batch in batches]
    numbers = ["".join(map(chr, row)) for part in texts for row in part if row.any()]
    assert sorted(numbers) == sorted(2 * [f"{n:03}" for n in range(RECORDS)])


def test_it_opens_a_split_of_a_directory_or_files_by_a_pattern(data):
    name = loader.open(data, "train").shard(0).path.rpartition("-train")[0]
    for files, changes, records in (
        (data, {}, RECORDS),
        (data, {"train_split": "validation"}, 9),
        (f"{name}-train.array_record*", {}, RECORDS),
        (f"{name}-validation.array_record*", {}, 9),
    ):
        found = maxtext_feed.open_dataset(config_of(files, **changes))
        assert len(found) == records


def test_its_state_resumes_and_refuses_another_order(data, mesh):
    config = config_of(data)
    with maxtext_feed.feed_of(config, mesh, encode) as feed:
        next(feed)
        state = json.loads(json.dumps(feed.get_state()))
        expected = next(feed)
    with maxtext_feed.feed_of(config, mesh, encode) as feed:
        feed.set_state(state)
        got = next(feed)
    assert got.keys() == expected.keys()
    for name in got:
        np.testing.assert_array_equal(got[name], expected[name])
    config.data_shuffle_seed = 1
    with (
        maxtext_feed.feed_of(config, mesh, encode) as feed,
        pytest.raises(StateMismatchError, match="seed"),
    ):
        feed.set_state(state)


@pytest.mark.parametrize("packing", [False, True])
def test_rows_that_were_packed_are_fed_as_they_are(packing, mesh, tmp_path):
    made = documents(40, seed=1, mean=8)
    path = pack(tmp_path, [made], length=LENGTH, method="best-fit")
    dataset = loader.open(path)
    config = config_of(path, packing=packing, train_data_columns=[])
    with maxtext_feed.feed_of(config, mesh, encode) as feed:
        batches = list(feed)
    assert {batch["inputs"].shape for batch in batches} == {(BATCH, LENGTH)}
    filled = sum(int(batch["inputs"].any(axis=1).sum()) for batch in batches)
    assert filled == len(dataset)
    assert len(dataset) % BATCH  # The last batch is filled up.
    counts = dataset.packed_counts()
    tokens, targets = (
        sum(int((batch[name] > 0).sum()) for batch in batches)
        for name in ("inputs_segmentation", "targets_segmentation")
    )
    assert (tokens, targets) == (counts.tokens, counts.targets)
    assert max(batch["inputs_segmentation"].max() for batch in batches) > 1
    config.max_target_length = 2 * LENGTH
    with pytest.raises(InputError, match="stored in another way"):
        maxtext_feed.feed_of(config, mesh, encode)


@pytest.mark.slow
def test_worker_processes_make_the_same_rows(data, mesh):
    batches = []
    for workers in (0, 1):
        config = config_of(data, grain_worker_count=workers)
        with maxtext_feed.feed_of(config, mesh, encode) as feed:
            batches.append([batch["inputs"].copy() for batch in feed])
    np.testing.assert_array_equal(*batches)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("colocated_python_data_input", True),
        ("elastic_enabled", True),
        ("expansion_factor_real_data", 0.5),
        ("expansion_factor_real_data", 2),
        ("grain_file_type", "parquet"),
        ("grain_train_files", "a*,0.7;b*,0.3"),
        ("grain_train_mixture_config_path", "mixture.json"),
        ("grain_use_elastic_iterator", True),
        ("grain_worker_count", -1),
        ("packing", True),
        ("tokenize_train_data", False),
        ("use_dpo", True),
        ("use_multimodal", True),
        ("use_sft", True),
        ("use_truncation", False),
    ],
)
def test_a_setting_that_it_cannot_honour_is_refused_by_name(data, mesh, name, value):
    with pytest.raises(InputError, match=rf"\b{name}\b") as refused:
        maxtext_feed.feed_of(config_of(data, **{name: value}), mesh, encode)
    assert refused.value.got == repr(value)
    assert refused.value.cure


def test_rows_that_nothing_is_trained_on_are_refused(data, mesh):
    config = config_of(data, global_batch_size_to_train_on=2, per_device_batch_size=0.5)
    with pytest.raises(InputError, match="per_device_batch_size"):
        maxtext_feed.feed_of(config, mesh, encode)


def test_every_refusal_has_its_test():
    marks = test_a_setting_that_it_cannot_honour_is_refused_by_name.pytestmark
    tested = {name for mark in marks for name, _ in mark.args[1]}
    others = {"grain_train_files", "grain_worker_count", "packing"}
    assert tested == maxtext_feed.CANNOT.keys() | others
