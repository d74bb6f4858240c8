"""Errors of the data get out of MaxText's trainers, which drop them."""

import pathlib
import shutil

import pytest

from gristmill import loader
from gristmill.dataset import GristmillError
from gristmill.loader.maxtext import install
from gristmill.loader.maxtext.post_train import raise_failure
from tests.support import maxtext_trainers as trainers
from tests.support.maxtext import RECORDS, config_of


@pytest.fixture
def damaged(rows, tmp_path) -> str:
    """A copy of the packed rows whose last shard is damaged."""
    copy = tmp_path / "damaged"
    shutil.copytree(rows, copy)
    shard = pathlib.Path(loader.open(str(copy)).shard(1).path)
    data = bytearray(shard.read_bytes())
    data[1_000:1_016] = bytes(255 - byte for byte in data[1_000:1_016])
    shard.write_bytes(data)
    return str(copy)


def in_order(**settings):
    return config_of(enable_data_shuffling=False, steps=1_000, **settings)


def test_an_error_of_the_data_gets_out_of_pre_training(maxtext, mesh, damaged):
    install()
    with pytest.raises(GristmillError) as raised:
        trainers.pre_train(maxtext, in_order(grain_train_files=damaged), mesh)
    assert damaged in str(raised.value)
    assert "StopTraining" not in str(raised.value.__context__)


def test_the_end_of_the_data_is_the_end_of_training(maxtext, mesh, rows):
    install()
    config = in_order(grain_train_files=rows, num_epoch=1)
    steps = -(-len(loader.open(rows)) // 8)
    assert len(trainers.pre_train(maxtext, config, mesh)) == steps
    assert len(trainers.post_train(maxtext, config, mesh)) == steps


def test_an_error_of_a_function_of_maxtext_gets_out_too(maxtext, mesh, records):
    install()
    guard = maxtext["maxtext.common.data_loader"].loader_exception_guard
    with pytest.raises(AssertionError, match="turn"), guard(None):
        raise AssertionError("a turn is missing")
    with pytest.raises(trainers.StopTraining), guard(None):
        raise StopIteration
    config = in_order(grain_train_files=records, num_epoch=1, packing=False)
    assert len(trainers.pre_train(maxtext, config, mesh)) == -(-RECORDS // 8)


@pytest.mark.parametrize("side", ["train", "eval"])
def test_an_error_of_the_data_gets_out_of_post_training(
    maxtext, mesh, rows, damaged, side
):
    install()
    files = {"grain_train_files": rows, f"grain_{side}_files": damaged}
    config = in_order(
        **files, eval_split="train", eval_interval=2 if side == "eval" else -1
    )
    with pytest.raises(GristmillError) as raised:
        trainers.post_train(maxtext, config, mesh)
    assert damaged in str(raised.value)


def test_a_batch_that_is_not_trained_on_may_fail(maxtext, mesh, damaged):
    install()
    config = in_order(grain_train_files=damaged)
    config.steps = 0
    hooks = maxtext["maxtext.trainers.post_train.hooks"].BaseDataHooks(
        config, mesh, None
    )
    hooks.train_data_iterator.gristmill_failure = ValueError("later")
    hooks.train_data_iterator.local_iterator = iter(())
    assert trainers.post_train(maxtext, config, mesh) == []
    with pytest.raises(ValueError, match="later"):
        raise_failure([object(), hooks.train_data_iterator])
