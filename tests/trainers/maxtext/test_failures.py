"""Errors of the data get out of MaxText's trainers, which drop them."""

import pathlib
import shutil
import sys
import types

import pytest

from gristmill import loader
from gristmill.dataset import GristmillError, InputError
from gristmill.loader.maxtext import install
from tests.trainers.maxtext import maxtext_trainers as trainers
from tests.trainers.maxtext.maxtext import RECORDS, config_of


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


def test_an_error_of_a_function_of_maxtext_gets_out_too(maxtext, mesh, records):
    install()
    guard = maxtext["maxtext.common.data_loader"].loader_exception_guard
    with pytest.raises(AssertionError, match="turn"), guard(None):
        raise AssertionError("a turn is missing")
    with pytest.raises(trainers.StopTraining), guard(None):
        raise StopIteration
    config = in_order(grain_train_files=records, num_epoch=1, packing=False)
    assert len(trainers.pre_train(maxtext, config, mesh)) == -(-RECORDS // 8)


def test_a_trainer_that_uses_tunix_is_refused(maxtext, mesh, rows, monkeypatch):
    install()
    hooks = types.ModuleType("maxtext.trainers.post_train.hooks")
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)
    with pytest.raises(InputError, match="save no state of the data"):
        trainers.pre_train(maxtext, in_order(grain_train_files=rows), mesh)
