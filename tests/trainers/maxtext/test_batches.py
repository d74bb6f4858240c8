"""MaxText's batches: of packed rows, of conversations, of records it tokenises."""

import json
import pickle

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import InputError, StateMismatchError
from gristmill.loader.maxtext.iterators import RecordDatasets, make_iterator
from gristmill.loader.maxtext.settings import Options, Side, batches_of, open_sources
from tests.trainers.maxtext.maxtext import LENGTH, RECORDS, config_of, numbers_of


def assert_same(some, others):
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_packed_rows_are_those_of_the_dataset_each_once_an_epoch(rows, make):
    train, _ = make(grain_train_files=rows, num_epoch=2)
    # Any host's state is that of all.
    assert isinstance(train.local_iterator, loader.Feed)
    batches = list(train.local_iterator)
    dataset = loader.open(rows)
    seen, counts = 2 * len(dataset), dataset.facts.packed
    assert seen % 8
    assert len(batches) == -(-seen // 8)
    arrays = {n: np.concatenate([each[n] for each in batches]) for n in batches[0]}
    for array in arrays.values():
        assert (array.shape, array.dtype) == ((8 * len(batches), LENGTH), "int32")
    for name, count in (("inputs", counts.tokens), ("targets", counts.targets)):
        assert np.count_nonzero(arrays[f"{name}_segmentation"]) == 2 * count
    segments = arrays["inputs_segmentation"].max(axis=1)
    assert np.flatnonzero(segments).tolist() == [*range(seen)]
    assert segments.max() > 1


def test_evaluation_is_one_pass_in_order_and_begins_anew(rows, make):
    settings = {"grain_eval_files": rows, "eval_split": "train", "eval_interval": 1}
    settings |= {"num_epoch": 3, "data_shuffle_seed": 5}
    _, iterator = make(grain_train_files=rows, **settings)
    batches, dataset = list(iterator.local_iterator), loader.open(rows)
    first = loader.PackedRows.of(dataset, length=LENGTH)(dataset[:8])
    np.testing.assert_array_equal(batches[0]["inputs"], first["inputs"])
    assert len(batches) == -(-len(dataset) // 8)
    iterator.reset()
    assert_same(list(iterator.local_iterator), batches)


@pytest.mark.parametrize(
    ("packing", "truncation", "rows"),
    [(False, True, 8), (True, True, 256), (False, False, 256)],
)
def test_each_record_is_seen_once_an_epoch(make, records, packing, truncation, rows):
    settings = {"packing": packing, "use_truncation": truncation, "num_epoch": 2}
    train, _ = make(grain_train_files=records, **settings)
    # A step of the order is one of the trainer where each row is a record.
    assert train.gristmill_readers[0].batches.batch_size == rows
    batches = list(train.local_iterator)
    assert batches[0]["inputs"].shape == (8, LENGTH)
    seen = numbers_of(batches)
    assert sorted(seen) == sorted(2 * [*range(RECORDS)])
    assert seen[:RECORDS] != sorted(seen[:RECORDS])


ELASTIC = {"packing": False, "grain_use_elastic_iterator": True}


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        ("{records}", {"packing": False}),
        ("{records}", ELASTIC),
        ("{records},0.7;{others},0.3", {}),
        ("{rows}", {}),
    ],
)
def test_it_resumes_exactly(make, records, others, rows, files, settings):
    files = files.format(records=records, others=others, rows=rows)

    def made(num_epoch=3, **more):
        given = {"grain_train_files": files, "num_epoch": num_epoch}
        return make(**given, **settings, **more)[0].local_iterator

    whole = made()
    next(whole)
    state = json.loads(json.dumps(whole.get_state()))
    again = made()
    again.set_state(state)
    assert_same([next(again) for _ in range(2)], [next(whole) for _ in range(2)])
    for changed in ({"data_shuffle_seed": 1}, {"num_epoch": 2}):
        with pytest.raises(StateMismatchError, match=r"seed|epochs"):
            made(**changed).set_state(state)


def test_what_does_not_fit_the_rows_is_refused_by_name(rows, long_rows, make):
    evaluated = {"grain_eval_files": rows, "eval_split": "train", "eval_interval": 1}
    most = loader.open(rows).facts.packed.most_pieces
    small = {"global_batch_size_to_train_on": 2, "per_device_batch_size": 0.5}
    few = {"max_segments_per_seq": most - 1}
    for settings, named in (
        (small, "per_device_batch_size"),
        ({"grain_worker_count": -2}, "grain_worker_count of"),
        (evaluated | {"grain_worker_count_eval": -2}, "grain_worker_count_eval"),
        ({"vocab_size": 1_000}, "vocab_size"),  # Seen in the tokens.
        (
            {"vocab_size": 59_999, "grain_train_files": long_rows},
            "vocab_size=60,000 or more",
        ),
        (few, f"max_segments_per_seq={most} or more"),
        ({"max_target_length": 8}, "max_target_length of MaxText"),
        ({"grain_train_files": f"{rows},1;{long_rows},1"}, "another way"),
    ):
        with pytest.raises(InputError, match=f"(?s){named}.*to do: "):
            next(make(**{"grain_train_files": rows} | settings)[0])
    next(make(grain_train_files=rows, max_segments_per_seq=most)[0])


def test_hosts_have_their_rows_of_gristmills_batches(records):
    side, options = Side(config_of(grain_train_files=records), "train"), Options()
    datasets = RecordDatasets(side, open_sources(side, options), options, 4)
    uneven = {"epochs": 1, "drop_remainder": False}
    dataset = loader.open(records, "train")
    batches = loader.global_batches(dataset, batch_size=8, **uneven)
    for host in range(2):
        # As MaxText sends it to another process.
        there = pickle.loads(pickle.dumps(datasets))
        given = there(dataloading_host_index=host, dataloading_host_count=2)
        assert list(given) == list(batches.records(host=(host, 2)))
    block = batches_of(datasets.sources, side, Options(shuffle="block"), rows=8)
    assert "block shuffle" in repr(block)


@pytest.mark.parametrize("use_sft", [True, False])
def test_targets_that_are_not_trained_are_left_out(make, chat, use_sft):
    train, _ = make(grain_train_files=chat, use_sft=use_sft)
    batch, opened = next(train), loader.open(chat)
    batches = loader.global_batches(opened, batch_size=8, seed=0)
    expected = loader.PackedRows.of(opened)(batches.read(0))
    assert_same([{name: batch[name] for name in expected}], [expected])
    trained = np.count_nonzero(batch["targets_segmentation"])
    assert 0 < trained < np.count_nonzero(batch["inputs_segmentation"]) / 2


def test_rows_of_plain_text_are_refused_with_use_sft(make, rows, chat):
    with pytest.raises(InputError, match=r"(?s)use_sft of MaxText.*pack --chat"):
        make(grain_train_files=rows, use_sft=True)
    train, _ = make(grain_train_files=f"{rows},1;{chat},1", use_sft=True)
    assert np.count_nonzero(np.asarray(next(train)["targets_segmentation"]))


@pytest.mark.parametrize("use_sft", [True, False])
@pytest.mark.parametrize(
    ("arguments", "off"),
    [
        ([], True),
        (["add_bos=true"], False),
        (["add_eos=false"], False),
        (["gristmill_sft_ends=settings"], False),
        (["gristmill_sft_ends=template", "add_bos=true"], True),
    ],
)
def test_ends_around_parts_are_off_unless_they_are_given(
    maxtext, records, caplog, arguments, off, use_sft
):
    options, _ = Options.taken_from(["base.yml", *arguments])
    config, seen = config_of(grain_train_files=records, use_sft=use_sft), []
    make_iterator("train", options, lambda *args: seen.extend(args), config, None, [0])
    given, changed = seen[0], use_sft and off
    assert (given.add_bos, given.add_eos) == (not changed,) * 2
    assert given.grain_train_files == records
    assert ("pack --chat" in caplog.text) == use_sft
    assert (f"{'off' if off else 'put a token'}" in caplog.text) == use_sft
