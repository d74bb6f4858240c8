"""What is replaced in MaxText, and what is run with it."""

import operator
import sys

import pytest

from gristmill.dataset import InputError
from gristmill.loader.maxtext import __main__ as command
from gristmill.loader.maxtext import install, installation
from tests.trainers.maxtext import maxtext as stand_in
from tests.trainers.maxtext.maxtext import RECORDED, RECORDS, config_of, numbers_of

INTERFACE = "maxtext.input_pipeline.input_pipeline_interface"


def test_the_stand_in_has_the_recorded_interface(maxtext):
    checked = 0
    for path, parameters in RECORDED["signatures"].items():
        module = max((m for m in maxtext if path.startswith(f"{m}.")), key=len)
        name = path.removeprefix(f"{module}.")
        try:
            function = operator.attrgetter(name)(maxtext[module])
        except AttributeError:  # It has only what gristmill replaces or calls.
            continue
        if name == "get_datasets":
            continue
        assert stand_in.parameters_of(function) == parameters, path
        checked += 1
    assert checked >= 9
    for module, names in RECORDED["attributes"].items():
        assert all(hasattr(maxtext[module], name) for name in names)
    assert RECORDED["maxtext"] == installation.TRIED


def test_get_datasets_is_called_as_it_was_recorded(maxtext, mesh, records):
    called = {}
    names = [
        name
        for name, _, _ in RECORDED["signatures"][
            "maxtext.input_pipeline.grain_data_processing.get_datasets"
        ]
    ]
    processing = maxtext["maxtext.input_pipeline.grain_data_processing"]

    def get_datasets(*args, **named):
        called.update(zip(names, args, strict=False), **named)
        raise LookupError

    processing.get_datasets = get_datasets
    with pytest.raises(LookupError):
        processing.make_grain_train_iterator(config_of(), mesh, [0])
    assert called.keys() == set(names)


@pytest.mark.parametrize("name", ["hf", "synthetic", "tfds", "olmo_grain"])
def test_other_pipelines_of_maxtext_are_refused(maxtext, mesh, name):
    install()
    with pytest.raises(InputError, match="dataset_type of MaxText") as refused:
        maxtext[INTERFACE].create_data_iterator(config_of(dataset_type=name), mesh)
    assert refused.value.got == repr(name)


def test_another_maxtext_is_refused_with_the_version_that_was_tried(maxtext):
    del maxtext[INTERFACE].make_grain_eval_iterator
    del maxtext["maxtext.input_pipeline.grain_data_processing"].make_grain_eval_iterator
    with pytest.raises(InputError, match="no MaxText here") as refused:
        install()
    assert "make_grain_eval_iterator" in refused.value.expected
    assert installation.TRIED in refused.value.cure


def test_no_maxtext_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "maxtext", None)
    with pytest.raises(InputError, match="no MaxText here") as refused:
        install()
    assert "pip install" in refused.value.cure


@pytest.fixture
def trainer(tmp_path, monkeypatch) -> str:
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
    numbers = [number for batch in seen for number in numbers_of(batch["inputs"])]
    assert sorted(numbers) == [*range(RECORDS)]
    assert sys.argv[1:] == ["base.yml", f"grain_train_files={records}"]
    assert "no data iterator" not in caplog.text
    command.main(["-m", trainer, "base.yml"])
    assert "toy_trainer asked for no data iterator" in caplog.text
    with pytest.raises(SystemExit):
        command.main(["-m", trainer, "fail"])
    with pytest.raises(InputError, match="there is no argument"):
        command.main(["base.yml", "gristmill_sed=1"])
