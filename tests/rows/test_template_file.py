"""Templates in files, the options of conversations, and whole jobs with them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.dataset import encode_example
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.message_spans import ROLES
from gristmill.pipelines.commands.main import main
from gristmill.transforms.chat.template import templates_of
from gristmill.transforms.jobs.pack_options import ChatOptions
from tests.rows.test_masks import CHATML, SAID
from tests.support.conversations import (
    chat_options,
    read,
    write_bpe,
)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    write_bpe(tmp_path)
    (tmp_path / "chat.jinja").write_text(CHATML)
    return tmp_path


def options_of(folder: pathlib.Path, file: str, content: Any, **more: Any) -> Any:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / file).write_text(text)
    return chat_options(folder / file, folder / "tokenizer.json", **more)


def test_a_config_names_templates_and_tokens(folder: pathlib.Path) -> None:
    both = [
        {"name": "default", "template": "{{ bos_token }}" + CHATML},
        {"name": "tool_use", "template": "{{ eos_token }}" + CHATML},
    ]
    config = {"chat_template": both, "bos_token": "<pad>"}
    config["eos_token"] = {"content": "<|eot|>", "special": True}
    options = options_of(folder, "tokenizer_config.json", config, bos="", eos="")
    documents = read(options, {"messages": SAID}, {"messages": SAID, "tools": []})
    first = [documents.ids[0], documents.ids[documents.lengths[0]]]
    special = options.found.special_ids
    assert first == [special["<pad>"], special["<|eot|>"]]
    # A template of Jinja takes the tokens from the file beside it.
    options = options_of(folder, "own.jinja", "{{ bos_token }}", bos="", eos="")
    assert options.chat.found.tokens["bos_token"] == "<pad>"


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("a.json", {"bos_token": "<s>"}, "no chat_template"),
        (
            "a.json",
            {"chat_template": [{"name": "rag", "template": ""}]},
            "no chat_temp",
        ),
        ("a.jinja", "{% for m in messages %}", "cannot be used"),
        ("a.jinja", "{% generation %}", "cannot be used"),
        ("a.jinja", "{{ eos_token }}", "writes eos_token"),
    ],
)
def test_a_file_without_a_template_says_so(
    folder: pathlib.Path, file: str, content: Any, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        options_of(folder, file, content, bos="", eos="")


def test_a_missing_template_and_bytes_say_so(folder: pathlib.Path) -> None:
    with pytest.raises(InputError, match="no such template"):
        chat_options(folder / "none", folder / "tokenizer.json")
    (folder / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        chat_options(folder / "bytes", folder / "tokenizer.json")


def test_roles_of_options() -> None:
    def names(**chat: str) -> set[str]:
        roles = ChatOptions(template="x", **chat).trained_roles
        return {ROLES[role] for role in roles}

    said = {"assistant", "thinking", "tool_call"}
    assert names() == names(train="last") == said
    assert names(train_without="tools") == said - {"tool_call"}
    assert names(train="tool") == {"tool"}
    assert names(train="all") == {*ROLES}


def test_a_tokenizer_without_places_is_refused(folder: pathlib.Path) -> None:
    (folder / "tokens_of.py").write_text(
        "def encode(texts):\n    return [list(t.encode()) for t in texts]\n\n\n"
        "encode.vocabulary_size = 256\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        options = chat_options(
            folder / "chat.jinja", "tokens_of:encode", bos="", eos=""
        )
        with pytest.raises(InputError, match="where its tokens are"):
            read(options, {"messages": SAID})


def run(*arguments: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    assert not ended.value.code


def test_every_source_gives_the_same_rows(folder: pathlib.Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    calls = "{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls else '' }}"
    pathlib.Path("chat.jinja").write_text(CHATML.replace("{{ m.content }}", calls))
    call = {"function": {"name": "f", "arguments": {"x": "sun"}}}
    called = [SAID[0], {"role": "assistant", "content": "", "tool_calls": [call]}]
    rows: list[dict[str, Any]] = [{"messages": SAID}, {"messages": called}]
    rows += [{"messages": SAID * 2}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    pathlib.Path("a.jsonl").write_text(lines)
    pathlib.Path("a.txt").write_text(lines)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.append_column("more", [[b"\xff", b"", b""]]), "a.parquet")
    texts = [json.dumps(row["messages"]) for row in rows]
    pathlib.Path("a.csv").write_text(
        "messages\n" + "".join('"' + t.replace('"', '""') + '"\n' for t in texts)
    )
    from gristmill.dataset import Writer

    with Writer("records") as writer:
        for text in texts:
            writer.write(encode_example({"messages": text}))
    digests = set()
    for source, more in {
        "a.jsonl": (),
        "a.txt": ("--input-format", "text"),
        "a.parquet": (),
        "a.csv": ("--input-format", "csv"),
        "records": (),
    }.items():
        out = f"rows_{source}"
        base = ("--tokenizer", "tokenizer.json", "--template", "chat.jinja")
        run("pack", "--chat", source, out, *base, "--length", 128, *more)
        run("verify", out)
        split = json.loads(pathlib.Path(out, "dataset.json").read_text())["splits"]
        made = next(iter(split.values() if isinstance(split, dict) else split))
        assert made["packed"]["documents"] == 3
        digests.add(made["records_digest"])
    assert len(digests) == 1


_GROWS = (
    "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(40) %}"
    "{% set n.s = n.s OP n.s %}{% endfor %}{{ n.s|length }}"
)
_WIDE = 1_000_000_000
HARMFUL = {
    "{% macro f(n) %}{% if n %}{{ f(n - 1) + f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(40) }}": "more than 100,000 turns",
    "{% macro f(n, s) %}{{ f(n - 1, s ~ s) if n else s|length }}{% endmacro %}"
    "{{ f(40, 'xxxxxxxx') }}": "characters",
    "{{ messages|random }}": "random draws at random",
    "{{ lipsum() }}": "'lipsum' is undefined",
    "{{ strftime_now('%d %b %Y') }}": "give one with --date",
    "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}": (
        "more than 100,000 turns"
    ),
    f"{{{{ 'x' * {_WIDE} }}}}": r"operator \*",
    f"{{{{ ['x'] * {_WIDE} }}}}": r"operator \*",
    f"{{{{ 7 ** {_WIDE} }}}}": r"operator \*\*",
    _GROWS.replace("OP", "~"): "makes .* characters",
    _GROWS.replace("OP", "+"): "makes .* characters",
    f"{{{{ messages|tojson(indent={_WIDE}) }}}}": "filter tojson is given",
    f"{{{{ 'x'.center({_WIDE}) }}}}": "filter center",
    f"{{{{ 'x'|center({_WIDE}) }}}}": "filter center",
    f"{{{{ '%{_WIDE}d' % 1 }}}}": "filter format",
    f"{{{{ '%{_WIDE}d'|format(1) }}}}": "filter format",
    f"{{{{ '{{:{_WIDE}}}'.format(1) }}}}": "filter format",
}


@pytest.mark.parametrize("template", HARMFUL)
def test_a_template_cannot_harm(folder: pathlib.Path, template: str) -> None:
    path = folder / "harmful.jinja"
    path.write_text(template)
    options = chat_options(path, folder / "tokenizer.json", max_rejected=0)
    with pytest.raises(InputError, match=HARMFUL[template]):
        read(options, {"messages": SAID})


def test_what_templates_do_is_as_before(folder: pathlib.Path) -> None:
    """Operators and filters that are counted give what they always give."""
    path = folder / "usual.jinja"
    path.write_text(
        "{{ 'a' ~ 1 ~ none }}{{ 'b' + 'c' }}{{ 'd' * 3 }}{{ 'at: 2025 %05d' % 7 }}"
        "{{ 'x y'|replace(' ', '_') }}{{ {'k': [1, 2]}|tojson(indent=2) }}"
        "{{ '{:>4}'.format('z') }}{% for m in messages if m.content %}{{ loop.index }}"
        "{{ m.role if loop.last else '-' }}{% endfor %}"
    )
    options = chat_options(path, folder / "tokenizer.json")
    (template,) = templates_of(options.chat).values()
    text = 'a1NonebcdddVx_y{\n  "k": [\n    1,\n    2\n  ]\n}   z1-2assistant'
    assert template.render(SAID, None) == text.replace("V", "at: 2025 00007")
