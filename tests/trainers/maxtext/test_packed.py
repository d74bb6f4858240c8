"""Packed rows as MaxText's batches."""

import json

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import InputError, StateMismatchError
from gristmill.loader.maxtext.iterators import (
    PackedBatches,
    make_iterator,
    packed_batches,
)
from gristmill.loader.maxtext.settings import Options, Side, open_sources
from tests.trainers.maxtext.maxtext import LENGTH, config_of

pytestmark = pytest.mark.usefixtures("maxtext")


def made(mesh, config, *, name="train", options=None):
    def own(*_):
        raise AssertionError("MaxText's own pipeline runs")

    return make_iterator(name, options or Options(), own, config, mesh, [0])


def packed(mesh, config, name="train") -> PackedBatches:
    side, options = Side(config, name), Options()
    sources = open_sources(side, options)
    return packed_batches(config, mesh, side, sources, options)


def assert_same(some, others) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_rows_are_those_of_the_dataset_each_once_an_epoch(rows, mesh):
    config = config_of(grain_train_files=rows, num_epoch=2)
    batches = list(made(mesh, config).local_iterator)
    for batch in batches:
        assert {array.shape for array in batch.values()} == {(8, LENGTH)}
        assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    dataset = loader.open(rows)
    counts = dataset.facts.packed
    tokens, targets = (
        sum(int((batch[name] > 0).sum()) for batch in batches)
        for name in ("inputs_segmentation", "targets_segmentation")
    )
    assert (tokens, targets) == (2 * counts.tokens, 2 * counts.targets)
    filled = [int(batch["inputs_segmentation"].any(axis=1).sum()) for batch in batches]
    full, rest = divmod(2 * len(dataset), 8)
    assert rest
    assert filled == [8] * full + [rest]
    assert batches[0]["inputs_segmentation"].max() > 1


def test_evaluation_is_one_pass_in_order_and_begins_anew(rows, mesh):
    config = config_of(
        grain_eval_files=rows, eval_split="train", num_epoch=3, data_shuffle_seed=5
    )
    iterator = made(mesh, config, name="eval")
    batches = list(iterator.local_iterator)
    decode = loader.PackedRows.of(loader.open(rows), length=LENGTH)
    first = decode(loader.open(rows)[:8])
    np.testing.assert_array_equal(batches[0]["inputs"], first["inputs"])
    assert len(batches) == -(-len(loader.open(rows)) // 8)
    iterator.reset()
    assert_same(list(iterator.local_iterator), batches)


def test_its_state_is_one_for_all_hosts_and_refuses_another_order(rows, mesh):
    config = config_of(grain_train_files=rows)
    whole = [batch for batch, _ in zip(packed(mesh, config), range(4), strict=False)]
    some = iter(packed(mesh, config))
    for _ in range(2):
        next(some)
    state = json.loads(json.dumps(some.get_state()))
    half = packed(mesh, config)
    feed = half.batches.feed(host=(0, 2), decode=half.decode)
    assert feed.get_state() == {**state, "step": 0}
    again = iter(packed(mesh, config))
    again.set_state(state)
    assert_same([next(again) for _ in range(2)], whole[2:])
    other = iter(packed(mesh, config_of(grain_train_files=rows, data_shuffle_seed=1)))
    with pytest.raises(StateMismatchError, match="seed"):
        other.set_state(state)


def test_a_mixture_has_the_weights_of_its_settings(rows, mesh, tmp_path):
    config = config_of(grain_train_files=f"{rows},3;{rows},1")
    batches = packed(mesh, config).batches
    assert batches.names == ("d-train", "d-train-2")
    assert [str(part) for part in batches.schedule.phases[0].mixture.weights] == [
        "3/4",
        "1/4",
    ]
    file = tmp_path / "mixture.json"
    entry = {"path": rows, "weight": 0.5}
    file.write_text(json.dumps({"a": entry, "b": entry}))
    config = config_of(grain_train_mixture_config_path=str(file))
    assert packed(mesh, config).batches.names == ("a", "b")


def test_what_does_not_fit_the_rows_is_refused_by_name(rows, long_rows, mesh, caplog):
    def refusal(options=None, name="train", **settings) -> InputError:
        config = config_of(**{"grain_train_files": rows, **settings})
        with pytest.raises(InputError) as refused:
            next(made(mesh, config, name=name, options=options))
        assert refused.value.cure
        return refused.value

    assert "per_device_batch_size" in str(
        refusal(global_batch_size_to_train_on=2, per_device_batch_size=0.5)
    )
    assert "grain_worker_count of" in str(refusal(grain_worker_count=-2))
    evaluation = {"grain_eval_files": rows, "eval_split": "train"}
    wrong = refusal(name="eval", **evaluation, grain_worker_count_eval=-2)
    assert "grain_worker_count_eval" in str(wrong)
    assert "vocab_size" in str(refusal(vocab_size=1_000))  # seen in the tokens
    known = refusal(vocab_size=59_999, grain_train_files=long_rows)
    assert "vocab_size=60,000 or more" in str(known)
    most = loader.open(rows).facts.packed.most_pieces
    few = refusal(max_segments_per_seq=most - 1)
    assert few.expected.startswith(f"max_segments_per_seq={most} or more")
    next(made(mesh, config_of(grain_train_files=rows, max_segments_per_seq=most)))
    assert "max_target_length of MaxText" in str(refusal(max_target_length=8))
    mixed = refusal(grain_train_files=f"{rows},1;{long_rows},1")
    assert "another way" in str(mixed)
