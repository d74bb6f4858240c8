"""Cures that name commands or options, followed in the situation that raises them."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import textwrap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import cures
from tests.commands.cures import Row

P = pathlib.Path
SHARD = "array_record-00000-of-00001"


def table(**columns: object):
    return lambda: pq.write_table(pa.table(columns), "t.parquet")


def text(name: str, content: str):
    return lambda: (P(name).parent.mkdir(exist_ok=True), P(name).write_text(content))


def cut(name: str, left_out: int = 5):
    return lambda: P(name).write_bytes(P(name).read_bytes()[:-left_out])


def flip(name: str, at: int):
    def change() -> None:
        data = bytearray(P(name).read_bytes())
        data[at] ^= 1
        P(name).write_bytes(data)

    return change


def all_of(*steps):
    return lambda: [step() for step in steps]


def files_of(*datasets: str):
    """Copies the shards of datasets to `files`, without what is beside them."""

    def copy() -> None:
        os.mkdir("files")
        for shard in [s for d in datasets for s in P(d).glob("*array_record-*")]:
            shutil.copy(shard, "files")

    return copy


TOKENS = "--tokenizer data/tokenizer.json --accept unknown"
SAID = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
CHATS = [{"messages": SAID}, {"messages": [*SAID, {"role": "user", "content": "x"}]}]
CHAT = (
    "{% for m in messages %}{{ m.role + m.content + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)
CONVERSATIONS = all_of(
    text("c.jsonl", "".join(json.dumps(each) + "\n" for each in CHATS)),
    text("t.jinja", CHAT),
    text(
        "bad.jinja",
        CHAT + "{% if messages|length > 2 %}{{ raise_exception('x') }}{% endif %}",
    ),
)


def repository(*files: str):
    """Writes the Parquet files of a Hugging Face repository to `hf`."""

    def write() -> None:
        for file in files:
            P("hf", file).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"a": ["x", "y"]}), f"hf/{file}")

    return write


# Command lines, of which the last fails; then, indented, those that follow its cure.
PLAIN = """
convert a.jsonl out --compression lzma
  convert a.jsonl out --compression brotli:5
convert a.csv d --split test
trace d --records 3 --batch-size 5
  trace d --records 3 --batch-size 5 --split test
head a.jsonl --offset 1000
  head a.jsonl --offset 10
head d --seed 3
  head d --seed 3 --random
  head d
trace d --step 3 --row 4 --batch-size 10 --window-blocks 3
  trace d --step 3 --row 4 --batch-size 10 --window-blocks 3 --shuffle block
convert a.txt d
  convert a.txt d --split lines
  convert a.txt other
  convert a.txt d --overwrite
pack rows out {TOKENS}
  pack a.jsonl out2 {TOKENS}
index d/*array_record-*
  inspect d
  index d/*array_record-* --overwrite
append d a.csv --split test
  append d a.csv --split train
  convert a.csv d --split test
convert data/tfrecords out --columns id
  convert data/tfrecords out
convert da*/ out
  convert data/tfrecords/* out
convert d a.jsonl out
  convert d out
  convert d/*array_record-* out2
convert a.jsonl a.csv out
  convert a.jsonl out
  append out a.csv
pack a.jsonl a.csv out {TOKENS}
  pack a.jsonl out {TOKENS}
  pack a.csv out2 {TOKENS}
convert a.txt out --input-format jsonl
  convert a.txt out --input-format text
  convert a.txt out2
convert d out --split nope
  convert d out --split train
  convert d out2
convert a.csv out --nulls skip
  convert a.csv out
pack a.jsonl out {TOKENS} --column id
  pack a.jsonl out {TOKENS} --column text
  pack a.jsonl out2 --column id --vocabulary-size 50
pack a.csv out {TOKENS} --record line
  pack a.csv out {TOKENS}
pack a.jsonl out {TOKENS} --columns text
  pack a.jsonl out {TOKENS}
pack a.jsonl out {TOKENS} --add-special-tokens
  pack a.jsonl out {TOKENS}
  pack a.jsonl out2 {TOKENS} --bos <s> --eos </s>
convert a.jsonl two
convert a.jsonl two --split test
unique two --by record
  unique two --by record --split test
convert a.txt lines
unique lines
  unique lines --by text:-
  unique lines --by record --overwrite
trace d --records 3 --batch-size 10 --first-epoch 4 --stop-epoch 4
  trace d --records 3 --batch-size 10 --first-epoch 4 --stop-epoch 5
convert a.csv out --columns text:int
  convert a.csv out --columns text:string
convert a.csv out --columns *,nope:int
  convert a.csv out --columns *,id:int
pack d out --column id --vocabulary-size 5
  pack d out --column id --vocabulary-size 50
pack a.jsonl out {TOKENS} --fast
  pack a.jsonl out {TOKENS}
"""
ROWS = [
    Row(*(textwrap.dedent(part).format(TOKENS=TOKENS).strip() for part in row))
    for row in re.findall(r"((?:^\S.*\n)+)((?:^  .*\n)+)", PLAIN, re.MULTILINE)
]
ROWS += [
    Row(
        "convert a.jsonl out",
        "convert a.jsonl out --overwrite\nconvert a.jsonl other",
        text("out/out-train.array_record-00007-of-00009", "x"),
    ),
    Row(
        "inspect d",
        "convert a.jsonl d --overwrite",
        text("d/dataset.json", "{"),
    ),
    Row(
        "verify files",
        "index files/*\nverify files",
        files_of("d"),
    ),
    Row(
        "head d",
        "convert a.jsonl d --overwrite\nhead d",
        cut("d/index/d-train.shards.npz"),
    ),
    Row(
        "head d",
        "convert a.jsonl d\nverify d --quick\nhead d",
        P(f"d/d-train.{SHARD}").unlink,
    ),
    Row(
        "convert data/tfrecords/* out",
        "convert data/tfrecords/* out --on-corrupt skip",
        cut("data/tfrecords/demo.tfrecord-00002-of-00004"),
    ),
    Row(
        "convert t.parquet out --record column:a",
        "convert t.parquet out --record column:a --on-corrupt skip",
        table(a=pa.array([b"x", b"\xff", b"z"]).view(pa.string())),
    ),
    Row(
        "trace rows --step 0 --row 0 --token 3 --batch-size 2",
        f"pack a.jsonl rows {TOKENS} --eos </s> --length 64 --overwrite\n"
        "trace rows --step 0 --row 0 --token 3 --batch-size 2",
        flip(f"rows/index/rows-train.{SHARD}.segments", 30),
    ),
    Row(
        "append d b.jsonl\nrollback d 1",
        "inspect d\nrollback d 2",
        all_of(
            text("b.jsonl", '{"id": 9, "text": "b"}\n'), P(f"d/d-train.{SHARD}").unlink
        ),
    ),
    Row(
        "attach d ranks.jsonl --number n",
        "attach d ranks.jsonl --number n --missing 0",
        text("ranks.jsonl", '{"n": 0, "rank": 1}\n'),
    ),
    Row(
        "remove d --records gone",
        "remove d --records gone --column text",
        text("gone", "line 3\n"),
    ),
    Row(
        "remove d --records gone",
        "remove d --records gone --allow-missing",
        text("gone", "3\n5000\n"),
    ),
    Row(
        "convert files/d-* d2 --name d2",
        "convert files/d-* d2 --split lines\nconvert files/d-* other",
        all_of(
            files_of("d"),
            lambda: (
                shutil.copytree("files", "d2"),
                [
                    path.rename(f"d2/{path.name.replace('d-', 'd2-')}")
                    for path in P("d2").iterdir()
                ],
                cures.run("index d2/*"),
            ),
        ),
    ),
    Row(
        "index files/*",
        "index files/* --split train",
        all_of(
            files_of("data/demo"),
            lambda: P("files/demo-train.array_record-00002-of-00008").unlink(),
        ),
    ),
    Row(
        "index files/*",
        "index files/d-* --name d",
        files_of("data/demo", "d"),
    ),
    Row(
        "convert b.csv e\nappend e a.csv",
        "append e a.csv --columns *,id:float",
        text("b.csv", "id,text\n1.5,a\n2.5,b\n"),
    ),
    Row(
        "convert data/tfrecords/* out --on-corrupt skip --max-corrupt 0",
        "convert data/tfrecords/* out --on-corrupt skip --max-corrupt 1",
        cut("data/tfrecords/demo.tfrecord-00002-of-00004"),
    ),
    Row(
        "convert *.tfrecord out",
        "convert *.tfrecord out --on-corrupt skip",
        lambda: (
            shutil.copy("data/tfrecords/demo.tfrecord-00000-of-00004", "a.tfrecord"),
            P("b.tfrecord").touch(),
        ),
    ),
    Row(
        "convert a.txt out --columns line",
        "convert a.txt out --columns line --input-format csv\nconvert a.txt out2",
        text("a.txt", "line\nfirst\nsecond\n"),
    ),
    Row(
        "convert *.parquet out",
        "convert *.parquet out --columns a\n"
        "convert t.parquet out2 --split t\nconvert u.parquet out2 --split u",
        all_of(
            table(a=["x"], b=[1]),
            lambda: pq.write_table(pa.table({"a": ["y"], "c": [2]}), "u.parquet"),
        ),
    ),
    Row(
        "convert d out",
        "convert d/*array_record-* out",
        P(f"d/index/d-train.{SHARD}.index").unlink,
    ),
    Row(
        "convert t.parquet out --record column:a",
        "convert t.parquet out --record column:a --nulls skip",
        # Without statistics nothing tells beforehand.
        lambda: pq.write_table(
            pa.table({"a": ["x", None]}), "t.parquet", write_statistics=False
        ),
    ),
    Row(
        "convert t.parquet out --record column:a",
        "convert t.parquet out --record column:a --nulls skip",
        table(a=["x", None, "z"]),
    ),
    Row(
        "convert t.parquet out",
        "convert t.parquet out --columns *,a:float",
        table(a=[16777217.0, 0.5], b=["x", "y"]),
    ),
    Row(
        "convert t.parquet out --columns *,a:int",
        "convert t.parquet out --columns *,a:float",
        table(a=[16777217.0, 0.5], b=["x", "y"]),
    ),
    Row(
        "convert t.parquet out --record column:a",
        "convert t.parquet out --record column:b\nconvert t.parquet out2",
        table(a=[1, 2], b=["x", "y"]),
    ),
    Row(
        "convert t.parquet out",
        "convert t.parquet out --columns b\nconvert t.parquet out2 --record column:b",
        table(a=[[["x"], ["y", "z"]]], b=["z"]),
    ),
    Row(
        "convert t.parquet out",
        "convert t.parquet out --columns b",
        lambda: pq.write_table(
            pa.Table.from_arrays([pa.array([1])] * 3, names=["a", "a", "b"]),
            "t.parquet",
        ),
    ),
    Row(
        "pack --chat c.jsonl out --template t.jinja",
        f"pack --chat c.jsonl out --template t.jinja {TOKENS}",
        CONVERSATIONS,
    ),
    Row(
        f"pack --chat c.jsonl out {TOKENS} --template bad.jinja --max-rejected 0",
        f"pack --chat c.jsonl out {TOKENS} --template t.jinja --max-rejected 0",
        CONVERSATIONS,
    ),
    Row(
        f"pack --chat t.parquet out {TOKENS} --template t.jinja --column nope "
        "--tools-column no --weight-column none",
        f"pack --chat t.parquet out {TOKENS} --template t.jinja --column a",
        all_of(CONVERSATIONS, table(a=[json.dumps(SAID)])),
    ),
    Row(
        "append d a.csv",
        "convert a.jsonl d --overwrite\nappend d a.csv",
        text("d/index/d-train.inputs.npz", "PK"),
    ),
    Row(
        "trace rows --step 0 --row 0 --token 3 --batch-size 2",
        f"pack a.jsonl rows {TOKENS} --eos </s> --length 64 --overwrite\n"
        "trace rows --step 0 --row 0 --token 3 --batch-size 2",
        cut(f"rows/index/rows-train.{SHARD}.segments", 9),
    ),
    Row(
        "plan a.jsonl --map nothing:f",
        "plan a.jsonl",
        text("nothing.py", "def f(record):\n    return None\n"),
    ),
    Row(
        "trace d --state state.json --step 1 --row 2 --batch-size 10",
        "trace d --step 1 --row 2 --batch-size 10",
        text("state.json", "{}"),
    ),
    Row(
        "trace a=rows b=rows --step 1 --row 0 --batch-size 2 --weights a=1,b=2 "
        "--token-weights a=1,b=2",
        "trace a=rows b=rows --step 1 --row 0 --batch-size 2 --weights a=1,b=2\n"
        "trace a=rows b=rows --step 1 --row 0 --batch-size 2 --token-weights a=1,b=2",
    ),
    Row(
        "trace a=d b=d --step 1 --row 0 --batch-size 2 --tokens-per-row 5",
        "trace a=d b=d --step 1 --row 0 --batch-size 2\n"
        "trace a=d b=d --step 1 --row 0 --batch-size 2 --tokens-per-row 5 "
        "--token-weights a=1,b=2",
    ),
    Row(
        "remove packed --records some.txt",
        f"remove d --records some.txt\npack d packed {TOKENS} --length 64 --overwrite",
        all_of(
            text("some.txt", "3\n"),
            lambda: cures.run(f"pack d packed {TOKENS} --length 64"),
        ),
    ),
    Row(
        "convert files/* out",
        "convert files/a-train-* out --split train\n"
        "convert files/a-test-* out --split test\n"
        "convert files/* out2 --split all",
        all_of(
            text("files/a-train-00000-of-00001.jsonl", '{"a": 1}\n'),
            text("files/a-test-00000-of-00001.jsonl", '{"a": 1}\n'),
        ),
    ),
    Row(
        "convert hf out",
        "convert hf/*/*.parquet out",
        repository("day=1/a.parquet", "day=2/b.parquet"),
    ),
    Row(
        "convert hf out --split test",
        "convert hf out --split train\nconvert hf out2",
        repository("data/train-00000-of-00001.parquet"),
    ),
    Row(
        "convert hf out",
        "convert hf/data/train-* out --split train",
        repository("data/train-00000-of-00001.parquet", "data/more.parquet"),
    ),
    Row(
        "convert hf out",
        "convert hf/data/* out --split train",
        all_of(
            repository("data/train-00000-of-00001.parquet"),
            text("hf/README.md", "---\nconfigs: 3\n---\n"),
        ),
    ),
    Row(
        "index files/*",
        "index files/* --split all",
        all_of(
            files_of("d"), lambda: shutil.copy(f"files/d-train.{SHARD}", "files/other")
        ),
    ),
    Row(
        "convert a.jsonl out --map own_1:f",
        "convert a.jsonl out --map own_1:g",
        text("own_1.py", "def f(r):\n    return 1\n\n\ndef g(r):\n    return r\n"),
    ),
    Row(
        "convert b.csv out --on-corrupt skip",
        "convert b.csv out --input-format csv --overwrite",
        text("b.csv", "a\n1\n"),
    ),
    Row(
        "convert hf out",
        "convert hf/train/*.parquet out",
        all_of(
            text("hf/dataset_dict.json", '{"splits": ["train"]}'),
            repository("train/a.parquet"),
        ),
    ),
    Row(
        "convert b.csv out --input-format csv",
        "convert b.csv out --input-format text",
        text("b.csv", "1,1\n2,2\n"),
    ),
    Row(
        "convert b.jsonl out",
        "convert b.jsonl out --on-corrupt skip",
        text("b.jsonl", '{"a": 1}\n' * 200 + '{"a": \n'),
    ),
    Row(
        "convert data/demo out",
        "convert data/tfrecords/* data/demo --num-shards 8 --overwrite\n"
        "convert data/demo out",
        flip("data/demo/demo-train.array_record-00001-of-00008", 200_000),
    ),
    Row(
        "convert t.parquet out",
        "convert t.parquet out --columns b",
        table(a=[[1, None]], b=["x"]),
    ),
    Row(
        "convert t.parquet out",
        "convert t.parquet out --columns b",
        table(a=pa.array([2**63], pa.uint64()), b=["x"]),
    ),
    Row(
        "convert t.parquet out",
        "convert t.parquet out --on-corrupt skip",
        table(
            a=pa.StringArray.from_buffers(
                2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"x\xff")
            )
        ),
    ),
    Row(
        f"pack data/demo out {TOKENS} --column -",
        f"pack data/demo out {TOKENS} --column - --map own_2:f",
        text("own_2.py", "def f(record):\n    return b'a text'\n"),
    ),
    Row(
        "pack t.parquet out --column a --vocabulary-size 9",
        "pack t.parquet out --column a --vocabulary-size 9 --map own_3:f",
        all_of(
            table(a=[[-1, 2]]),
            text(
                "own_3.py",
                "from gristmill.dataset import encode_example\n\n\n"
                "def f(r):\n    return encode_example({'a': [1, 2]})\n",
            ),
        ),
    ),
    Row(
        f"pack b.csv out {TOKENS}",
        f"pack b.csv out {TOKENS} --input-format text",
        text("b.csv", "a line\nanother line\n"),
    ),
    Row(
        "pack a.jsonl out --tokenizer own_4:f --add-special-tokens",
        "pack a.jsonl out --tokenizer own_4:f --eos 1",
        text(
            "own_4.py",
            "def f(texts):\n    return [[2] * len(t) for t in texts]\n\n\n"
            "f.vocabulary_size = 3\n",
        ),
    ),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with inputs, and the datasets `d`, `data/demo` and `rows`."""
    folder = tmp_path_factory.mktemp("cures")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cures.run("demo data") == 0
        rows = [{"id": number, "text": f"line {number}"} for number in range(50)]
        P("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines = "".join("{id},{text}\n".format(**row) for row in rows)
        P("a.csv").write_text(f"id,text\n{lines}")
        P("a.txt").write_text("".join(f"{row['text']}\n" for row in rows))
        assert cures.run("convert a.jsonl d") == 0
        assert cures.run(f"pack a.jsonl rows {TOKENS} --eos </s> --length 64") == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.wrong)
def test_what_the_message_says_helps(row, made, tmp_path, monkeypatch, capfd):
    folder = tmp_path / "folder"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    cures.forget()
    row.given()
    *before, wrong = row.wrong.splitlines()
    assert [cures.run(line) for line in before] == [0] * len(before)
    capfd.readouterr()
    assert cures.run(wrong) not in (0, 130)
    _, _, cure = capfd.readouterr().err.partition("to do:")
    said, followed = map(cures.options_of, (cure, row.cured))
    for line in row.cured.splitlines():
        assert cures.run(line) == 0, capfd.readouterr().err
    # A function of the user's, and Dataflow, are not tried here.
    followed |= cures.options_of(wrong)
    assert cure
    assert said & followed or not said - {"--map", "--runner"}, cure
