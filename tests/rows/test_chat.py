"""Conversations in all forms that datasets have, templates in files, whole jobs."""

import csv
import json
import pathlib
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import loader
from gristmill.dataset import InputError, Writer, encode_example, open_manifest
from gristmill.transforms.chat.conversation import (
    ConversationColumns,
    MalformedError,
    conversation_of,
)
from gristmill.transforms.chat.template import templates_of
from tests.rows.command import run
from tests.rows.conversations import OWN_SPECIAL, chat_options, read, write_bpe
from tests.rows.test_masks import CHATML, SAID

SHARED = [
    {"from": "human", "value": "hello world"},
    {"from": "gpt", "value": "the answer"},
]
PAIR = {"prompt": "hello world", "completion": "the answer"}
SYSTEM = {"role": "system", "content": "s"}
WITH_SYSTEM = [SYSTEM, *SAID]
JSON = json.dumps(SAID)
USUAL = ConversationColumns("", "tools", "weight")


def found(record, columns=USUAL):
    data = record if isinstance(record, bytes) else json.dumps(record).encode()
    return conversation_of(data, columns)


FORMS = [
    {"messages": SAID},
    {"messages": JSON},
    {"conversations": SHARED},
    {"messages": [m | {"name": None} for m in SAID], "tools": None},
    SAID,
    encode_example({"messages": JSON}),
]
PAIRS = [
    PAIR,
    {"prompt": SAID[:1], "completion": SAID[1:]},
    {"prompt": json.dumps(SAID[:1]), "response": "the answer"},
    encode_example(PAIR),
]
# A system beside the messages is the first of them.
SYSTEMS = [
    {"conversations": SHARED, "system": "s"},
    {"system": "s", "messages": WITH_SYSTEM},
    {"system": "", "messages": WITH_SYSTEM},
    encode_example({"messages": JSON, "system": "s"}),
]


@pytest.mark.parametrize(
    ("record", "messages", "prompted"),
    [
        *((record, SAID, 0) for record in FORMS),
        *((record, SAID, 1) for record in PAIRS),
        *((record, WITH_SYSTEM, 0) for record in SYSTEMS),
        (PAIR | {"system": "s"}, WITH_SYSTEM, 2),
    ],
    ids=range(15),
)
def test_all_forms_are_one(record, messages, prompted):
    conversation = found(record)
    assert conversation.messages == messages
    assert conversation.roles[-2:] == [2, 3]
    assert conversation.weights == [1.0] * len(messages)
    assert conversation.tools is None
    assert conversation.prompted == prompted


def test_other_columns_can_be_named():
    columns = ConversationColumns("chat", "functions", "score")
    record = {"chat": SAID, "functions": ['{"name": "f"}'], "score": [0.5, 2]}
    conversation = found(record, columns)
    assert conversation.messages == SAID
    assert conversation.tools == [{"name": "f"}]
    assert conversation.weights == [0.5, 2.0]
    assert columns.names == ("chat", "system", "functions", "score")
    member = encode_example({"chat": json.dumps({"messages": SAID})})
    with pytest.raises(MalformedError):
        found(member, columns)  # The object is that of the record.


def says(**message):
    return {"messages": [message]}


APART = {"messages.role": ["user"], "messages.content": ["x"]}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"{", "not valid"),
        (b'{"messages": [], "messages": []}', "more than once"),
        (b"7", "object is needed"),
        ({"title": "x"}, "none of messages"),
        (encode_example(APART), "messages:json"),
        ({"messages": []}, "no messages"),
        ({"messages": {"role": "user"}}, "not a list"),
        ({"messages": ["hello"]}, "not an object"),
        (says(content="x"), "no role"),
        (says(role="", content="x"), "no role"),
        ({"conversations": [{"from": "function_call"}]}, "function_call"),
        (says(role="user", content=[{"type": "image"}]), "'image'"),
        (says(role="user", content=3), "not text"),
        (says(role="assistant", tool_calls="f()"), "tool_calls"),
        ({"messages": SAID, "tools": "none"}, "not a list"),
        ({"messages": SAID, "weight": [1]}, "1 values for 2"),
        ({"messages": SAID, "weight": -1}, "weight -1"),
        (says(role="user", content="q", weight="high"), "weight 'high'"),
        ({"messages": WITH_SYSTEM, "system": "t"}, "another message of that role"),
        ({"messages": WITH_SYSTEM, "system": ["s"]}, "its system is not text"),
    ],
)
def test_what_is_no_conversation_says_why(record, reason):
    with pytest.raises(MalformedError, match=reason):
        found(record)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_bpe(tmp_path)
    (tmp_path / "chat.jinja").write_text(CHATML)
    return tmp_path


def options_of(file, content, **more):
    pathlib.Path(file).write_bytes(content.encode())
    return chat_options(pathlib.Path(file), "tokenizer.json", **more)


def test_a_config_names_templates_and_tokens(folder):
    both = [
        {"name": "default", "template": "{{ bos_token }}" + CHATML},
        {"name": "tool_use", "template": "{{ eos_token }}" + CHATML},
    ]
    end = {"content": "<|eot|>", "special": True}
    config = {"chat_template": both, "bos_token": "<pad>", "eos_token": end}
    text = json.dumps(config)
    options = options_of("tokenizer_config.json", text, bos="", eos="")
    documents = read(options, {"messages": SAID}, {"messages": SAID, "tools": []})
    first = [documents.ids[0], documents.ids[documents.lengths[0]]]
    special = options.found.special_ids
    assert first == [special["<pad>"], special["<|eot|>"]]
    # A template of Jinja takes the tokens from the file beside it.
    options = options_of("own.jinja", "{{ bos_token }}", bos="", eos="")
    assert options.chat.found.tokens["bos_token"] == "<pad>"


NO_DEFAULT = {"chat_template": [{"name": "rag", "template": ""}]}


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("a.json", b'{"bos_token": "<s>"}', "no chat_template"),
        ("a.json", json.dumps(NO_DEFAULT).encode(), "no chat_template"),
        ("a.jinja", b"{% for m in messages %}", "cannot be used"),
        ("a.jinja", b"{% generation %}", "cannot be used"),
        ("a.jinja", b"{{ eos_token }}", "writes eos_token"),
        ("a.jinja", b"\xff\xfe", "not UTF-8"),
        ("none", b"", "no such template"),
    ],
)
def test_a_file_without_a_template_says_so(folder, file, content, reason):
    if content:
        pathlib.Path(file).write_bytes(content)
    with pytest.raises(InputError, match=reason):
        chat_options(pathlib.Path(file), "tokenizer.json", bos="", eos="")


def test_a_tokenizer_without_places_is_refused(folder, monkeypatch):
    encode = "def encode(texts):\n    return [list(t.encode()) for t in texts]\n"
    size = "encode.vocabulary_size = 256\n"
    (folder / "tokens_of.py").write_text(encode + size)
    monkeypatch.syspath_prepend(str(folder))
    options = chat_options(folder / "chat.jinja", "tokens_of:encode", bos="", eos="")
    with pytest.raises(InputError, match="where its tokens are"):
        read(options, {"messages": SAID})


GROWS = (
    "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(40) %}"
    "{% set n.s = n.s OP n.s %}{% endfor %}{{ n.s|length }}"
)
CALLED = "{% macro f(n, s='') %}BODY{% endmacro %}{{ f(40, 'xxxxxxxx') }}"
HARMFUL = {
    CALLED.replace("BODY", "{% if n %}{{ f(n - 1) + f(n - 1) }}{% endif %}"): "turns",
    CALLED.replace("BODY", "{{ f(n - 1, s ~ s) if n else s|length }}"): "characters",
    "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}": (
        "more than 100,000 turns"
    ),
    "{{ messages|random }}": "random draws at random",
    "{{ lipsum() }}": "'lipsum' is undefined",
    "{{ strftime_now('%d %b %Y') }}": "give one with --date",
    "{{ ['x'] * 1000000000 }}": r"operator \*",
    "{{ 7 ** 1000000000 }}": r"operator \*\*",
    GROWS.replace("OP", "~"): "makes .* characters",
    GROWS.replace("OP", "+"): "makes .* characters",
    "{{ messages|tojson(indent=1000000000) }}": "filter tojson is given",
    "{{ 'x'.center(1000000000) }}": "filter center",
    "{{ 'x'|center(1000000000) }}": "filter center",
    "{{ '%1000000000d' % 1 }}": "filter format",
    "{{ '%1000000000d'|format(1) }}": "filter format",
    "{{ '{:1000000000}'.format(1) }}": "filter format",
}


@pytest.mark.parametrize("template", HARMFUL)
def test_a_template_cannot_harm(folder, template):
    options = options_of("harmful.jinja", template, max_rejected=0)
    with pytest.raises(InputError, match=HARMFUL[template]):
        read(options, {"messages": SAID})


def test_operators_and_filters_that_are_counted_give_what_they_always_give(folder):
    options = options_of(
        "usual.jinja",
        "{{ 'a' ~ 1 ~ none }}{{ 'b' + 'c' }}{{ 'd' * 3 }}{{ 'at: 2025 %05d' % 7 }}"
        "{{ 'x y'|replace(' ', '_') }}{{ {'k': [1, 2]}|tojson(indent=2) }}"
        "{{ '{:>4}'.format('z') }}{% for m in messages if m.content %}{{ loop.index }}"
        "{{ m.role if loop.last else '-' }}{% endfor %}",
    )
    (template,) = templates_of(options.chat).values()
    text = 'a1NonebcdddVx_y{\n  "k": [\n    1,\n    2\n  ]\n}   z1-2assistant'
    assert template.render(SAID, None) == text.replace("V", "at: 2025 00007")


# Whole jobs


def write(records):
    text = "".join(json.dumps(each) + "\n" for each in records)
    pathlib.Path("in.jsonl").write_text(text)


GIVEN = "--tokenizer tokenizer.json --template chat.jinja"
SOURCES = {
    "in.jsonl": "",
    "in.txt": "--input-format text",
    "in.csv": "--input-format csv",
    "in.parquet": "",
    "records": "",
}


def test_every_source_gives_the_same_rows(folder):
    calls = "{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls else '' }}"
    pathlib.Path("chat.jinja").write_text(CHATML.replace("{{ m.content }}", calls))
    call = {"function": {"name": "f", "arguments": {"x": "sun"}}}
    called = [SAID[0], {"role": "assistant", "content": "", "tool_calls": [call]}]
    rows = [{"messages": said} for said in (SAID, called, SAID * 2)]
    write(rows)
    shutil.copy("in.jsonl", "in.txt")
    table = pa.Table.from_pylist(rows).append_column("more", [[b"\xff", b"", b""]])
    pq.write_table(table, "in.parquet")
    texts = [json.dumps(row["messages"]) for row in rows]
    with open("in.csv", "w") as file, Writer("records") as writer:
        csv.writer(file).writerows([["messages"], *([text] for text in texts)])
        for text in texts:
            writer.write(encode_example({"messages": text}))
    digests = set()
    for source, more in SOURCES.items():
        out = f"rows_{source}"
        run(f"pack --chat {source} {out} {GIVEN} --length 128 {more}")
        run(f"verify {out}")
        train = open_manifest(out).splits["train"]
        assert train.packed["documents"] == 3
        digests.add(train.records_digest)
    assert len(digests) == 1


BAD = {"messages": [{"role": "user"}, {"role": "assistant", "weight": -1}]}
LONG = {"messages": [SAID[0], SAID[1] | {"content": "sun " * 40}]}
GOOD = {"messages": SAID}
UNTRAINED = {"messages": SAID[:1]}
FAILS = "{{ raise_exception('never') }}"


USUAL_JOB = {"template": CHATML, "special": OWN_SPECIAL, "options": "", "accept": None}
# Jobs, what they and `audit` say, and the options with which they are done.
UNFIT = {
    "tokens of the template are missing": {
        "records": [GOOD] * 3,
        "special": ("<s>",),
        "said": ("no end of turn", "message 1, after which stands '<|im_end|>"),
        "accept": "--accept open-turns",
    },
    "the template fails": {
        "records": [GOOD] * 3,
        "template": FAILS,
        "said": ("cannot be used", "byte offset 0: the template fails: never"),
    },
    "malformed": {
        "records": [GOOD] * 97 + [BAD] * 3,
        "said": ("3 of 100 conv", "message 1 has the weight"),
        "accept": "--max-rejected 3",
    },
    "long": {
        "records": [GOOD] + [LONG] * 3,
        "options": "--length 32 --truncate-turns no",
        "said": ("3 of 4 conv", "tokens"),
        "accept": "--accept long",
    },
    "untrained": {
        "records": [UNTRAINED] * 2,
        "said": ("no row can be made", "no token of it is trained on"),
    },
}


@pytest.mark.parametrize("given", UNFIT.values(), ids=UNFIT)
def test_conversations_that_do_not_fit(folder, given):
    given = USUAL_JOB | given
    write(given["records"])
    write_bpe(folder, given["special"])
    pathlib.Path("chat.jinja").write_text(given["template"])
    words = f"in.jsonl {GIVEN} {given['options']}"
    pack = f"pack --chat {words} out --workers 1"
    refused = run(pack, code=2)
    for part in (*given["said"], "in.jsonl"):
        assert part in refused
    assert not pathlib.Path("out", "dataset.json").exists()
    audited = run(f"audit {words}")
    assert "UNFIT" in audited
    assert "gristmill pack --chat" not in audited
    if given["accept"] is None:
        run(f"{pack} --accept open-turns,long --max-rejected 100", code=2)
    else:
        run(f"{pack} {given['accept']}")
        assert len(loader.open("out"))


def test_commands_count_and_show_messages(folder):
    """Counts of `inspect` and `verify`, and the message of a token by `trace`."""
    unclear = {"messages": [SAID[0], {"role": "assistant", "content": "is </s> so"}]}
    write([GOOD] * 40 + [unclear, BAD])
    run(f"pack --chat in.jsonl out {GIVEN} --max-rejected 5 --length 64")
    data = loader.open("out")
    counts = data.facts.packed
    share = f"{100 * counts.trained_tokens / counts.tokens:.2f}"
    tokens = f"{counts.trained_tokens:,} of {counts.tokens:,} tokens"
    text = run("inspect out")
    for part in (
        f"trained   {tokens} ({share} %)",
        "SET ASIDE 1 conversation: 1 that cannot be used",
        "1 text like a special token",
    ):
        assert part in text
    assert tokens in run("verify out")

    batches = loader.global_batches(data, batch_size=4, seed=3)
    trace = "trace out --seed 3 --batch-size 4 --step 0 --row 1"
    decode = loader.PackedRows.of(data, names={"inputs_mask": "mask"})
    row, seen = decode([batches.read(0)[1]]), {}
    for token in range(int((row["inputs_segmentation"] > 0).sum())):
        (piece,) = batches.locate(0, 1, token).pieces
        assert piece.trained == row["mask"][0, token]
        assert piece.weight == (1 if piece.trained else None)
        seen[piece.role] = piece.message, token
    messages = {role: message for role, (message, _) in seen.items()}
    assert messages == {"template": None, "user": 0, "assistant": 1}
    for role, (message, token) in seen.items():
        (fields,) = json.loads(run(f"{trace} --token {token} --json"))["pieces"]
        assert (fields["role"], fields["message"]) == (role, message)
    said = f"token     {token}: assistant, message 1, trained"
    assert said in run(f"{trace} --token {token}")
    assert "hello world" in run(f"{trace} --show --tokenizer tokenizer.json")
