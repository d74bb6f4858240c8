"""`gristmill audit`: the same counts as `pack --chat`, before anything is made."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
from typing import Any

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.pipelines.commands.main import cli
from tests.rows.conversations import some_conversation, write_bpe
from tests.rows.test_masks import CHATML, SAID

LOST = {"messages": SAID[:1]}
TOO_LONG = {"messages": [*SAID, {"role": "user", "content": "sun " * 300}] * 2}
BROKEN = {"messages": [{"role": "user", "content": "no answer", "weight": -1}]}
RECORDS = [
    *({"messages": SAID}, LOST, TOO_LONG, BROKEN),
    *(some_conversation(random.Random(n)) for n in range(30)),
    {"text": "plain"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("audit")
    write_bpe(made)
    (made / "chat.jinja").write_text(CHATML)
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    (made / "a.jsonl").write_text(lines)
    return made


def run(folder: pathlib.Path, command: str, *given: object, code: int = 0) -> Any:
    options = ["--tokenizer", folder / "tokenizer.json", "--length", "400"]
    options += ["--template", folder / "chat.jinja", *given]
    done = CliRunner().invoke(cli, [*command.split(), *map(str, options)])
    assert done.exit_code == code, done.output
    return done


def test_counts_are_those_of_the_rows(folder: pathlib.Path) -> None:
    source, rows = folder / "a.jsonl", folder / "rows"
    before = {*os.listdir(folder)}
    found = json.loads(run(folder, "audit", source, "--json").stdout)
    assert {*os.listdir(folder)} == before
    run(folder, "pack --chat", source, rows, "--workers", 1, "--max-rejected", 30)
    packed = loader.open(rows).facts.packed
    assert packed is not None
    expected = packed.as_dict()
    assert found["records"] == len(RECORDS)
    # How rows are filled, and what proves them, is not known before.
    for name in ("padding_tokens", "most_pieces"):
        expected.pop(name)
    counts = {name: n for name, n in found["counts"].items() if n}
    assert counts == {name: n for name, n in expected.items() if n}
    assert {*packed.set_aside} >= {"untrained", "rejected"}
    assert packed.truncated_tokens > 0


def test_what_is_set_aside_is_named_with_the_reason(folder: pathlib.Path) -> None:
    text = run(folder, "audit", folder / "a.jsonl", "--truncate-turns", "no").stdout
    at = len(json.dumps(RECORDS[0])) + 1
    assert f"a.jsonl, byte offset {at:,}: no token of it is trained on" in text
    assert "message 0 has the weight -1" in text
    assert re.search(r"a\.jsonl, byte offset [\d,]+: \d+ tokens\n", text)
    assert "1 too long for a row" in text
    assert "audit` names" not in text


def test_text_and_pieces_are_shown_with_what_is_trained(folder: pathlib.Path) -> None:
    done = run(folder, "audit", folder / "a.jsonl", "-n", 1, "--show", 2)
    assert "<|im_start|>assistant\n[[the answer<|im_end|>]]\n" in done.stdout
    assert "trained 1 time: '<|im_end|>'" in done.stdout
    assert "not trained 1 time: '<|im_start|>user\\n'" in done.stdout
    split = re.search(
        r"(\d+) tokens in 1 conversation = (\d+) trained \+ (\d+) not", done.stdout
    )
    assert split is not None
    rendered, *parts = map(int, split.groups())
    assert rendered == sum(parts)
    assert min(parts) > 0
    assert "gristmill pack --chat" in done.stderr
    none = run(folder, "audit", folder / "a.jsonl", "-n", 1, "--show", 0).stdout
    assert "[[" not in none


def test_a_function_and_options_apply(folder: pathlib.Path, monkeypatch) -> None:
    (folder / "swap_roles.py").write_text(
        "def swap(record):\n    return record.replace(b'the answer', b'moon')\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    more = ("-n", 1, "--map", "swap_roles:swap", "--train-end-of-turn", "no")
    text = run(folder, "audit", folder / "a.jsonl", *more).stdout
    assert "[[moon]]<|im_end|>" in text


def test_what_pack_would_fail_for_is_said(folder: pathlib.Path) -> None:
    done = run(folder, "audit", folder / "a.jsonl", "--max-rejected", 1)
    assert "UNFIT     conversations cannot be used with this template" in done.stdout
    assert "gristmill pack" not in done.stderr
    text = run(folder, "audit", folder / "a.jsonl", "--max-rejected", 50).stdout
    assert "UNFIT" not in text


def test_a_template_that_fails_is_one_cause(folder: pathlib.Path) -> None:
    (folder / "fails.jinja").write_text("{{ raise_exception('no') }}")
    options = ("--template", folder / "fails.jinja")
    text = run(folder, "audit", folder / "a.jsonl", *options).stdout
    assert "UNFIT     conversations cannot be used with this template" in text
    assert "the template fails: no" in text
    assert "no row can be made" not in text


def test_what_cannot_be_audited_says_so(folder: pathlib.Path) -> None:
    (folder / "none.jsonl").write_text("\n")
    done = run(folder, "audit", folder / "none.jsonl", code=2)
    assert "error" in done.output
    done = CliRunner().invoke(cli, ["audit", str(folder / "a.jsonl")])
    assert done.exit_code == 2
    assert "--template" in done.output
