"""Template, tokenizer and column that do not fit the documents: never in silence."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.pipelines.commands.main import cli
from tests.support.conversations import bpe_json
from tests.support.tokenizer_files import tokenizer_json

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FAILS = "{{ raise_exception('never') }}"
SAID = [
    {"role": "user", "content": "hello world"},
    {"role": "assistant", "content": "the answer"},
]
BAD = {"messages": [{"role": "user"}, {"role": "assistant", "weight": -1}]}
LONG = {"messages": [SAID[0], SAID[1] | {"content": "sun " * 40}]}
GOOD = {"messages": SAID}

# Records, template, whether the tokenizer has its tokens, options; what is said, what
# is named as an example, and the options that accept it.
CHATS: dict[str, tuple[Any, ...]] = {
    "a tokenizer without the tokens of the template": (
        *([GOOD] * 3, CHATML, False, ""),
        *(
            "no end of turn",
            "message 1, after which stands '<|im_end|>",
            "--accept open-turns",
        ),
    ),
    "a template that fails": (
        *([GOOD] * 3, FAILS, True, ""),
        *("cannot be used", "byte offset 0: the template fails: never", None),
    ),
    "some that are no conversations": (
        *([GOOD] * 97 + [BAD] * 3, CHATML, True, ""),
        *(
            "got:      3 of 100 conversations",
            "message 1 has the weight",
            "--max-rejected 3",
        ),
    ),
    "rows that are too short": (
        *([GOOD] + [LONG] * 3, CHATML, True, "--length 32 --truncate-turns no"),
        *("got:      3 of 4 conversations", "tokens", "--accept long"),
    ),
    "nothing that is trained": (
        *([{"messages": SAID[:1]}] * 2, CHATML, True, ""),
        *("no row can be made", "no token of it is trained on", None),
    ),
}


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(records: list[Any]) -> None:
    lines = "".join(json.dumps(each) + "\n" for each in records)
    pathlib.Path("in.jsonl").write_text(lines)


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, [*words])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize("name", CHATS)
def test_conversations_that_do_not_fit(here: pathlib.Path, name: str) -> None:
    records, template, knows, options, what, example, accept = CHATS[name]
    write(records)
    pathlib.Path("t.jinja").write_text(template)
    special = ("<s>", "<|im_start|>", "<|im_end|>") if knows else ("<s>",)
    pathlib.Path("tokenizer.json").write_text(bpe_json(special))
    given = ["in.jsonl", "--template", "t.jinja", "--tokenizer", "tokenizer.json"]
    given += [*options.split()]
    pack = ("pack", "--chat", *given, "out", "--workers", "1")
    said = run(*pack, code=2)
    assert what in said
    assert example in said
    assert "in.jsonl" in said
    assert not pathlib.Path("out", "dataset.json").exists()
    audited = run("audit", *given)
    assert "UNFIT" in audited
    assert "gristmill pack --chat" not in audited
    if accept is not None:
        run(*pack, *accept.split())
        assert len(loader.open("out"))
    else:
        run(*pack, "--accept", "open-turns,long", "--max-rejected", "100", code=2)


DOCUMENTS: dict[str, tuple[Any, ...]] = {
    "an empty column": ([{"text": ""}] * 3, "no document has a token", None),
    "unknown text": ([{"text": "ÄÖÜ ß"}] * 3, "not in the vocabulary", "unknown"),
    "text that was bytes": (
        [{"text": str(b"the sun")}] * 3,
        "Python's notation of bytes",
        "bytes",
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_that_do_not_fit(here: pathlib.Path, name: str) -> None:
    records, what, accept = DOCUMENTS[name]
    write(records)
    model = {
        "type": "WordLevel",
        "vocab": {"<unk>": 0, "the": 1, "sun": 2},
        "unk_token": "<unk>",
    }
    content: Any = json.loads(tokenizer_json())
    if name == "unknown text":
        content = {"version": "1.0", "model": model, "added_tokens": []}
        content["pre_tokenizer"] = {"type": "Whitespace"}
    pathlib.Path("tokenizer.json").write_text(json.dumps(content))
    pack = ("pack", "in.jsonl", "out", "--tokenizer", "tokenizer.json")
    said = run(*pack, "--workers", "1", code=2)
    assert what in said
    assert "in.jsonl, byte offset 0" in said
    if accept is not None:
        run(*pack, "--accept", accept)


def test_text_like_a_special_token_is_counted(here: pathlib.Path) -> None:
    write([{"text": "a <|endoftext|> b"}, {"text": "plain"}])
    pathlib.Path("tokenizer.json").write_bytes(tokenizer_json())
    pack = ("pack", "in.jsonl", "--tokenizer", "tokenizer.json", "--workers", "1")
    for number, options in enumerate(((), ("--special-text", "token"))):
        said = run(*pack, f"out{number}", *options)
        assert "1 text like a special token" in said
        (row,) = loader.PackedRows.of(loader.open(f"out{number}"))(
            list(loader.open(f"out{number}"))
        )["inputs"]
        assert (5_000 in row) == bool(options)


def test_another_tokenizer_than_the_one_that_packed(here: pathlib.Path) -> None:
    """No command shows the tokens of one as the text of another."""
    write([{"text": "the sun"}] * 4)
    pathlib.Path("a.json").write_bytes(tokenizer_json())
    pathlib.Path("b.json").write_text(bpe_json())
    run("pack", "in.jsonl", "out", "--tokenizer", "a.json", "--workers", "1")
    order = ("--batch-size", "1", "--seed", "1")
    for command in (
        ("head", "out"),
        ("trace", "out", "--step", "0", "--row", "0", *order, "--show"),
        ("view", "out", "--html", "out.html"),
    ):
        run(*command, "--tokenizer", "a.json")
        said = run(*command, "--tokenizer", "b.json", code=2)
        assert "packed with another tokenizer" in said
        assert "b.json" in said
    assert "the sun" in run("head", "out", "--tokenizer", "a.json")


def test_a_decoder_of_rows_of_another_tokenizer_warns(
    here: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    write([{"text": "the sun"}] * 4)
    pathlib.Path("a.json").write_bytes(tokenizer_json())
    pathlib.Path("b.json").write_text(bpe_json())
    for name in "ab":
        given = ("--tokenizer", f"{name}.json", "--workers", "1", "--length", "64")
        run("pack", "in.jsonl", name, *given)
    a, b = loader.open("a"), loader.open("b")
    for rows, warned in ((a, False), (b, True)):
        with loader.global_batches(rows, batch_size=1).feed(
            decode=loader.PackedRows.of(a), host=(0, 1)
        ):
            assert ("rows of different tokenizers" in caplog.text) == warned
