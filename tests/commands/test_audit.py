"""`gristmill audit`: the same counts as `pack --chat`, before anything is made."""

import json
import os
import random
import re

import pytest

from gristmill import loader
from tests.commands.conftest import refused, run
from tests.rows.conversations import some_conversation, write_bpe
from tests.rows.test_masks import CHATML, SAID

TOO_LONG = {"messages": [*SAID, {"role": "user", "content": "sun " * 300}] * 2}
RECORDS = [
    {"messages": SAID},
    {"messages": SAID[:1]},
    TOO_LONG,
    {"messages": [{"role": "user", "content": "no answer", "weight": -1}]},
    *(some_conversation(random.Random(n)) for n in range(30)),
    {"text": "plain"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("audit")
    write_bpe(made)
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    for name, text in {
        "chat.jinja": CHATML,
        "fails.jinja": "{{ raise_exception('no') }}",
        "a.jsonl": lines,
        "none.jsonl": "\n",
        "own_moon.py": "def moon(r):\n    return r.replace(b'the answer', b'moon')\n",
    }.items():
        (made / name).write_text(text)
    return made


@pytest.fixture(autouse=True)
def _in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


ROWS = "--tokenizer tokenizer.json --template chat.jinja --length 400"


def audit(options=""):
    return run(f"audit a.jsonl {ROWS} {options}")


def test_counts_are_those_of_the_rows():
    before = {*os.listdir()}
    found = json.loads(audit("--json").stdout)
    assert {*os.listdir()} == before
    run(f"pack --chat a.jsonl rows {ROWS} --workers 1 --max-rejected 30")
    packed = loader.open("rows").facts.packed
    assert packed is not None
    assert found["records"] == len(RECORDS)
    # How rows are filled, and what proves them, is not known before.
    later = ("padding_tokens", "most_pieces")
    expected = {n: v for n, v in packed.as_dict().items() if v and n not in later}
    assert {name: n for name, n in found["counts"].items() if n} == expected
    assert {*packed.set_aside} >= {"untrained", "rejected"}
    assert packed.truncated_tokens > 0


def test_what_is_set_aside_is_named_with_the_reason():
    text = audit("--truncate-turns no").stdout
    at = len(json.dumps(RECORDS[0])) + 1
    assert f"a.jsonl, byte offset {at:,}: no token of it is trained on" in text
    assert "message 0 has the weight -1" in text
    assert re.search(r"a\.jsonl, byte offset [\d,]+: [\d,]+ tokens\n", text)
    assert "1 too long for a row" in text
    assert "audit` names" not in text


def test_text_and_pieces_are_shown_with_what_is_trained():
    done = audit("-n 1 --show 2")
    assert "<|im_start|>assistant\n[[the answer<|im_end|>]]\n" in done.stdout
    assert "trained 1 time: '<|im_end|>'" in done.stdout
    assert "not trained 1 time: '<|im_start|>user\\n'" in done.stdout
    counts = r"(\d+) tokens in 1 conversation = (\d+) trained \+ (\d+) not"
    rendered, *parts = map(int, re.search(counts, done.stdout).groups())
    assert rendered == sum(parts)
    assert min(parts) > 0
    assert "gristmill pack --chat" in done.stderr
    assert "[[" not in audit("-n 1 --show 0").stdout


def test_a_function_and_options_apply(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    done = audit("-n 1 --map own_moon:moon --train-end-of-turn no")
    assert "[[moon]]<|im_end|>" in done.stdout


def test_what_pack_would_fail_for_is_said():
    unfit = "UNFIT     conversations cannot be used with this template"
    done = audit("--max-rejected 1")
    assert unfit in done.stdout
    assert "gristmill pack" not in done.stderr
    assert "UNFIT" not in audit("--max-rejected 50").stdout
    assert "gristmill audit" not in done.stdout
    # A template that fails is one cause.
    text = audit("--template fails.jinja").stdout
    assert unfit in text
    assert "the template fails: no" in text
    assert "no row can be made" not in text
    refused(f"audit none.jsonl {ROWS}")
