"""The commands in Beam YAML: every option of the command line, rows out."""

from __future__ import annotations

import inspect
import pathlib

import pytest

from gristmill import loader
from gristmill.pipelines.beam import yaml_commands
from gristmill.pipelines.options.definitions import COMMANDS
from gristmill.pipelines.options.option import options_of
from tests.support.parquet_files import flip
from tests.support.pipelines import run
from tests.support.records import (
    text_records,
    write_array_records,
    write_tfrecords,
)

RECORDS = text_records(30)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_a_parameter(name: str) -> None:
    function = getattr(yaml_commands, name)
    parameters = inspect.signature(function).parameters
    described = options_of(COMMANDS[name])
    assert [*parameters] == [option.name for option in described]
    for option in described:
        default = inspect.Parameter.empty if option.required else option.default
        assert parameters[option.name].default == default
        assert f"    {option.name}: {option.help}" in str(function.__doc__)


def test_beam_knows_the_types() -> None:
    yaml_provider = pytest.importorskip(
        "apache_beam.yaml.yaml_provider", reason="comes with apache-beam[yaml]"
    )
    schema = yaml_provider.InlineProvider.config_schema_from_callable(
        yaml_commands.pack
    )
    types = {field.name: field.type for field in schema.fields}
    assert types["input"].HasField("array_type")
    assert types["length"].atomic_type != types["column"].atomic_type
    assert types["pack"].atomic_type == types["output"].atomic_type
    described = {field.name: field.description for field in schema.fields}
    assert described["length"] == "Maximum number of tokens in a row."


@pytest.mark.slow
def test_a_conversion_that_is_verified_and_appended_to(tmp_path: pathlib.Path) -> None:
    write_tfrecords(tmp_path / "in", RECORDS)
    write_tfrecords(tmp_path / "more", RECORDS[:5])
    out = str(tmp_path / "out")
    convert = yaml_commands.convert(
        input=str(tmp_path / "in"), output=out, num_shards=2, group_size=2
    )
    (done,) = run(convert)
    assert (done.output, done.split, done.shards) == (out, "train", 2)
    assert loader.open(out)[:] == RECORDS
    append = yaml_commands.append(input=[str(tmp_path / "more")], output=out)
    (done,) = run(append)
    assert (done.split, done.records) == ("train", len(RECORDS) + 5)
    report = tmp_path / "report.json"
    (found,) = run(yaml_commands.verify(dataset=out, report=str(report)))
    assert (found.records, list(found.findings)) == (len(RECORDS) + 5, [])
    assert report.exists()


def test_damage_is_in_the_row(tmp_path: pathlib.Path) -> None:
    write_tfrecords(tmp_path / "in", RECORDS)
    out = str(tmp_path / "out")
    run(yaml_commands.convert(input=[str(tmp_path / "in")], output=out))
    (shard,) = (tmp_path / "out").glob("*.array_record*")
    flip(shard, shard.stat().st_size // 2)
    (found,) = run(yaml_commands.verify(dataset=out))
    assert len(found.findings) == 1


def test_an_index(tmp_path: pathlib.Path) -> None:
    for split in ("test", "train"):
        name = f"old-{split}.array_record-00000-of-00001"
        write_array_records(tmp_path / name, RECORDS)
    rows = run(yaml_commands.index(files=[f"{tmp_path}/old-*"]))
    assert [row._asdict() for row in sorted(rows, key=lambda row: row.split)] == [
        {"name": "old", "split": split, "shards": 1, "records": len(RECORDS)}
        for split in ("test", "train")
    ]
    again = yaml_commands.index(files=[f"{tmp_path}/*"], split="test")
    with pytest.raises(Exception, match="with this split already"):
        run(again)


def test_options_that_no_command_has() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'output'"):
        yaml_commands.convert(input=["in"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'inputs'"):
        yaml_commands.convert(input=["in"], output="out", inputs=["in"])
