"""What is replaced in MaxText, what is run with it, and errors that get out of it."""

import pathlib
import shutil
import sys
import types

import pytest

from gristmill import loader
from gristmill.dataset import GristmillError, InputError
from gristmill.loader.maxtext import __main__ as command
from gristmill.loader.maxtext import install, installation
from tests.trainers.maxtext.maxtext import (
    GET_DATASETS,
    RECORDED,
    RECORDS,
    StopTraining,
    numbers_of,
)
from tests.with_maxtext.interface import signature_of

PIPELINE = "maxtext.input_pipeline"


def test_the_stand_in_has_the_recorded_interface(maxtext):
    checked = 0
    for path, parameters in RECORDED["signatures"].items():
        module, _, name = path.rpartition(".")
        function = getattr(maxtext[module], name, None)
        # The stand-in has only what gristmill replaces or calls.
        if function is not None and path != GET_DATASETS:
            assert signature_of(function) == parameters, path
            checked += 1
    assert checked >= 8
    for module, names in RECORDED["attributes"].items():
        assert all(hasattr(maxtext[module], name) for name in names)
    assert RECORDED["maxtext"] == installation.TRIED


@pytest.mark.parametrize("name", ["hf", "synthetic", "tfds", "olmo_grain"])
def test_other_pipelines_of_maxtext_are_refused(make, name):
    with pytest.raises(InputError, match=f"(?s)dataset_type of MaxText.*'{name}'"):
        make(dataset_type=name)


def test_another_maxtext_or_none_is_refused(maxtext, monkeypatch):
    for module in ("input_pipeline_interface", "grain_data_processing"):
        del maxtext[f"{PIPELINE}.{module}"].make_grain_eval_iterator
    message = f"(?s)no MaxText here.*make_grain_eval_iterator.*{installation.TRIED}"
    with pytest.raises(InputError, match=message):
        install()
    monkeypatch.setitem(sys.modules, "maxtext", None)
    with pytest.raises(InputError, match=r"(?s)no MaxText here.*pip install"):
        install()


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A module that trains as MaxText does, for the stand-in."""
    (tmp_path / "toy_trainer.py").write_text(
        "import json, sys\n"
        "from maxtext.input_pipeline import input_pipeline_interface as interface\n"
        "from tests.trainers.maxtext.maxtext import config_of\n"
        "if __name__ == '__main__':\n"
        "    given = dict(argument.split('=', 1) for argument in sys.argv[2:])\n"
        "    if given:\n"
        "        train, _ = interface.create_data_iterator(config_of(**given), None)\n"
        "        seen.extend(train.local_iterator)\n"
        "    sys.exit(int(len(sys.argv) == 2 and sys.argv[1] == 'fail'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    return "toy_trainer"


def test_the_command_runs_a_trainer_with_its_own_arguments(
    maxtext, records, trainer, monkeypatch, caplog
):
    seen = []
    monkeypatch.setattr("builtins.seen", seen, raising=False)
    files = f"grain_train_files={records}"
    command.main(["-m", trainer, "base.yml", "gristmill_shuffle=block", files])
    assert sorted(numbers_of(seen)) == [*range(RECORDS)]
    assert sys.argv[1:] == ["base.yml", f"grain_train_files={records}"]
    assert "no data iterator" not in caplog.text
    command.main(["-m", trainer, "base.yml"])
    assert "toy_trainer asked for no data iterator" in caplog.text
    with pytest.raises(SystemExit):
        command.main(["-m", trainer, "fail"])
    for argument, message in (
        ("gristmill_sed=1", "there is no argument"),
        ("gristmill_sft_ends=both", "template or settings"),
    ):
        with pytest.raises(InputError, match=message):
            command.main(["base.yml", argument])


def trained(maxtext, make, **settings):
    """Returns how many batches pre-training takes in order, to the end of the data."""
    guard = maxtext["maxtext.common.data_loader"]
    iterator, _ = make(enable_data_shuffling=False, **settings)
    for step in range(1_000):
        try:
            with guard.loader_exception_guard(None):
                next(iterator)
        except StopTraining:
            return step
    return None


def test_errors_of_the_data_get_out_of_training_and_their_end_does_not(
    maxtext, make, rows, records, tmp_path
):
    for files in (rows, records):
        settings = {"num_epoch": 1, "packing": files == rows}
        settings["grain_train_files"] = files
        steps = -(-len(loader.open(files, "train")) // 8)
        assert trained(maxtext, make, **settings) == steps
    copy = shutil.copytree(rows, tmp_path / "damaged")
    shard = pathlib.Path(loader.open(copy).shard(1).path)
    data = bytearray(shard.read_bytes())
    data[1_000:1_016] = bytes(16)
    shard.write_bytes(data)
    with pytest.raises(GristmillError) as raised:
        trained(maxtext, make, grain_train_files=str(copy))
    assert str(copy) in str(raised.value)
    assert "StopTraining" not in str(raised.value.__context__)
    guard = maxtext["maxtext.common.data_loader"].loader_exception_guard
    with pytest.raises(AssertionError, match="turn"), guard(None):
        raise AssertionError("a turn is missing")


def test_a_trainer_that_uses_tunix_is_refused(make, rows, monkeypatch):
    hooks = types.ModuleType("maxtext.trainers.post_train.hooks")
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)
    with pytest.raises(InputError, match="save no state of the data"):
        make(grain_train_files=rows)
