"""Every committed dataset is read as it was written: by two readers, and `verify`."""

import ast
import base64
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

from examples import reader
from tests.conformance import make

EXPECTED = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted(make.DATASETS.glob("*.json"))
}
WHOLE = [name for name, each in EXPECTED.items() if "splits" in each]
DAMAGED = [name for name in EXPECTED if name not in WHOLE]


@pytest.fixture
def unpacked(request, tmp_path):
    name = request.param
    with zipfile.ZipFile(make.DATASETS / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    return str(tmp_path / name)


def states(name):
    """Returns (split, edition, records, digest) of all states; None is the newest."""
    return [
        (split, number, records, state["records_digest"])
        for split, each in EXPECTED[name]["splits"].items()
        for edition, state in each["states"].items()
        for records in [[base64.b64decode(one) for one in state["records"]]]
        for number in [int(edition), *([None] * (int(edition) == each["edition"]))]
    ]


def test_nothing_is_missing():
    assert len(EXPECTED) == 50
    assert {path.stem for path in make.DATASETS.glob("*.zip")} == {*EXPECTED}
    assert {EXPECTED[name]["format_version"] for name in WHOLE} == {1}


@pytest.mark.parametrize("unpacked", EXPECTED, indirect=True)
def test_loader_and_verify_say_what_they_said(unpacked):
    expected = EXPECTED[pathlib.Path(unpacked).name]
    found = make.facts_of(unpacked, expected.get("blamed"))
    assert {"about": expected["about"], **found} == expected


@pytest.mark.parametrize("unpacked", WHOLE, indirect=True)
def test_another_reader_gives_the_records(unpacked):
    for split, edition, records, digest in states(pathlib.Path(unpacked).name):
        assert reader.read(unpacked, split, edition) == records
        assert reader.records_digest(records) == digest


@pytest.mark.parametrize("unpacked", DAMAGED, indirect=True)
def test_another_reader_refuses_what_is_damaged(unpacked):
    blamed = EXPECTED[pathlib.Path(unpacked).name]["blamed"]
    if blamed is None:
        assert reader.read(unpacked, "train") == make.read_all(unpacked)
        return
    path = re.escape(os.path.join(unpacked, blamed))
    with pytest.raises((OSError, ValueError), match=path):
        reader.read(unpacked, "train")


def test_the_reader_is_short_and_needs_numpy_and_codecs_alone():
    code = pathlib.Path(reader.__file__).read_text("utf-8")
    assert len(code.splitlines()) <= 200
    nodes = [*ast.walk(ast.parse(code))]
    imports = [node for node in nodes if isinstance(node, ast.Import)]
    imported = {alias.name for node in imports for alias in node.names}
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom)]
    others = imported - {*sys.stdlib_module_names}
    assert others == {"brotli", "cramjam", "numpy", "zstandard"}


@pytest.mark.slow
@pytest.mark.parametrize("unpacked", ["appended"], indirect=True)
def test_the_reader_prints_splits_with_digests(unpacked):
    digests = {edition: digest for _, edition, _, digest in states("appended")}
    command = [sys.executable, reader.__file__, unpacked]
    for state, number, edition in (([], 50, 2), (["train", "1"], 30, 1)):
        printed = subprocess.check_output([*command, *state], text=True)
        assert printed == f"train {number} {digests[edition]}\n"
