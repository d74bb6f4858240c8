"""Mistakes on the command line, and what their messages must name."""

from __future__ import annotations

import json
import os
import pathlib
import shlex

import pytest
from click.testing import CliRunner

from gristmill.pipelines.commands.main import cli

# A command line, then the exit code, and words of its message: what is wrong, the file
# or the option, and the option or the command that helps.
MISTAKES = """\
# New users' (the messages named neither the place nor the cure).
pack chat.jsonl out --tokenizer mill/tokenizer.json
  2: messages | --chat
pack lines.jsonl out --tokenizer chat.jinja
  2: chat.jinja | Jinja | --template
audit packed --template chat.jinja --tokenizer mill/tokenizer.json
  2: packed | got: packed rows | documents
convert lines out --select 'nope > 1'
  2: nope | gristmill attach
attach packed lines.jsonl --key id
  2: packed | 'id' | --number | --map
trace lines --document x@0 --batch-size 4
  2: not packed | lines | --records
trace lines --step 1 --row 0 --state notes.txt
  2: notes.txt | get_state
head unfinished
  3: unfinished | not a committed dataset | gristmill convert
# Paths.
convert lines.jsonl
  2: OUTPUT
append lines
  2: INPUT
rollback lines
  2: EDITION
convert 'nowhere/*' out
  2: nowhere/* | check the path
convert empty out
  2: empty | check the path
pack nowhere out --select 'score > 1' --tokenizer mill/tokenizer.json --length 64
  2: no input file | nowhere | check the path
head nowhere --tokenizer mill/tokenizer.json
  2: no input file | nowhere | check the path
convert zero.jsonl out
  2: zero.jsonl | 0 bytes | --on-corrupt
convert broken.jsonl out
  3: broken.jsonl, line 2 | --on-corrupt skip
inspect nowhere
  3: nowhere | gristmill convert
inspect lines.jsonl
  3: lines.jsonl | JSON lines | gristmill head
verify lines.jsonl
  3: lines.jsonl | gristmill convert
unique lines.jsonl
  3: lines.jsonl | gristmill convert
index lines.jsonl
  2: lines.jsonl | JSON lines | gristmill convert
bench-loader nowhere
  3: nowhere | check the path
attach lines nowhere.parquet --key id
  2: nowhere.parquet | check the path
attach lines table.csv --key id
  2: table.csv | Parquet | gristmill convert
pack lines.jsonl out --tokenizer nowhere.json
  2: nowhere.json | check the path
demo lines.jsonl
  1: lines.jsonl | Not a directory
demo gs://x/y
  2: gs://x/y | local directory
remove lines --records 5
  2: 5 | FILE@PLACE | echo 5 | check the path
# Values of options.
convert lines.jsonl out --num-shards 0
  2: --num-shards | 0
convert lines.jsonl out --num-shards many
  2: --num-shards | many
convert lines.jsonl out --shard-size big
  2: big | 256MiB | --shard-size
convert lines.jsonl out --compression gzip
  2: gzip | zstd | --compression
convert lines.jsonl out --group-size -1
  2: -1 | --group-size
convert lines.jsonl out --split a/b
  2: a/b | --split
convert lines.jsonl out --split train.e00002
  2: train.e00002 | --split
convert lines.jsonl out --columns nope
  2: nope | text, id | --columns
convert lines.jsonl out --columns id:byte
  2: id:byte | float | --columns
convert lines.jsonl out --record tables
  2: tables | column: | --record
convert lines.jsonl out --input-format parquet
  2: lines.jsonl | JSON lines | --input-format
convert lines.jsonl out --input-format xml
  2: xml | --input-format | jsonl
convert lines.jsonl out --map nocolon
  2: nocolon | module:function
convert lines.jsonl out --map json:nope
  2: json:nope | module:function
convert lines.jsonl out --on-corrupt stop
  2: stop | --on-corrupt | skip
convert lines out --select 'id >'
  2: id > | correct it
pack lines.jsonl out --tokenizer mill/tokenizer.json --length 1
  2: --length
pack lines.jsonl out --tokenizer mill/tokenizer.json --column body
  2: body | text, id | --column
pack lines.jsonl out --tokenizer mill/tokenizer.json --bos zebra
  2: --bos | zebra
attach lines lines.jsonl --key nope
  2: nope | lines.jsonl | key
attach lines lines.jsonl --key id --missing {x
  2: --missing | {x
unique lines --by colour
  2: colour | normalised
remove lines --records numbers.txt
  2: numbers.txt | 999999 | nothing was removed
remove lines --records notes.txt
  2: hello | FILE@PLACE | --column
remove lines --where 'nope > 1'
  2: nope | gristmill attach
rollback lines 9
  2: edition 9 | edition 1 | gristmill inspect
inspect lines --split dev
  2: dev | train | --split
head lines --offset 99
  2: 99 | below 20 | --offset
head lines --edition 7
  2: edition 7 | edition 1
trace lines --records x
  2: --records | x | A:B
trace lines --records 99
  2: 99 | record < 20
trace lines --step 1 --row 9 --batch-size 4
  2: row | 9 | 0 to 3
trace lines --step 9 --row 0 --batch-size 4 --epochs 1
  2: step < 5 | 9
trace lines --step 0 --row 0 --batch-size 4 --edition x
  2: x | gristmill inspect
account lines --steps 3 --batch-size 4 --by no
  2: 'no' | gristmill attach
view lines --records 99
  2: --records | 99 | below 20
view lines --records 1:x
  2: --records cannot be read | 1:x | 3,7:9
view lines --records 0:9999999999999
  2: --records | too many | 1,000
view lines --records web=1
  2: --records | no dataset of the mixture | web=1
view lines --seed 3
  2: batch size is missing | --batch-size | --state
view lines --html none/x.html
  1: none/x.html | --html
bench-loader lines --batch-size 3 --hosts 2
  2: 3 rows | 2 hosts
bench-loader lines --seconds 0
  2: --seconds | 0.1
convert lines.jsonl out --dry-run
  2: --dry-run | gristmill plan
status lines
  2: status | gristmill inspect
unique packed
  2: packed | --select | --by record
convert chat.jsonl lines
  2: lines | column id was int | --split | --overwrite
# Options that do not go together, or are missing.
convert lines.jsonl out --num-shards 3 --match-shards
  2: --shard-size | only one
convert lines.jsonl out --wait
  2: --wait | --runner DataflowRunner
convert lines.jsonl out --overwite
  2: --overwite | --overwrite
convrt a b
  2: convrt | convert
pack lines.jsonl out
  2: lines.jsonl | --tokenizer
pack lines.jsonl out --fast
  2: --fast | --tokenizer
pack chat.jsonl out --tokenizer mill/tokenizer.json --chat
  2: --template
pack lines.jsonl out --template chat.jinja
  2: --template | --chat
audit chat.jsonl --tokenizer mill/tokenizer.json
  2: --template
attach lines
  2: files | --map
attach lines lines.jsonl
  2: --key or --number
attach lines --map json:dumps --key id
  2: --map and --key
remove lines
  2: --records | --where
head lines --columns text
  2: --columns | lines | leave it out
head lines.jsonl --random
  2: --random | lines.jsonl | --offset
head lines --raw --json
  2: --raw and --json
trace lines
  2: --step and --row | --records
trace lines --step 1 --row 0
  2: --batch-size | --state
trace lines --records 1 --of web
  2: --of | lines | NAME=PATH
trace a=lines lines --records 1
  2: a=lines lines | NAME=PATH
trace lines,packed --records 1
  2: lines,packed | lines packed
account lines
  2: --state | --steps
view lines --steps 3
  2: --steps | --batch-size
head nowhere
  2: nowhere | check the path
plan 'nowhere/*'
  2: nowhere/* | check the path | quotes
bench-loader lines --split test
  2: test | train
bench-loader lines --decode nowhere:decode
  2: nowhere
trace packed --document x --batch-size 4
  2: x | FILE@PLACE | line:N
diff a b
  2: inspect DATASET --edition N
blame lines
  2: gristmill trace
inspect lines --records-per-shard 9
  2: --num-shards
audit lines --template chat.jinja
  2: --tokenizer
remove lines --records numbers.txt --column nope
  2: nope | --column
remove lines --records numbers.txt --runner DataflowRunner
  2: --runner
remove lines --records mill/tfrecords/demo.tfrecord-00000-of-00004
  2: UTF-8
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with inputs, a dataset, packed rows, and a conversion that failed."""
    made = tmp_path_factory.mktemp("mistakes")
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    files = {
        "lines.jsonl": [{"text": f"the {n}", "id": n} for n in range(20)],
        "chat.jsonl": [{"messages": said}],
    }
    for name, records in files.items():
        (made / name).write_text("".join(f"{json.dumps(one)}\n" for one in records))
    (made / "broken.jsonl").write_text('{"text": "a"}\n{"text":\n')
    (made / "chat.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    (made / "table.csv").write_text("id,text\n1,a\n")
    (made / "notes.txt").write_text("hello\n")
    (made / "numbers.txt").write_text("999999\n")
    (made / "zero.jsonl").write_text("")
    (made / "empty").mkdir()
    tokenizer = "mill/tokenizer.json --length 32"
    for line, code in (
        ("demo mill", 0),
        ("convert lines.jsonl lines --workers 1", 0),
        (f"pack lines.jsonl packed --tokenizer {tokenizer} --workers 1", 0),
        ("convert broken.jsonl unfinished --workers 1", 3),
    ):
        assert _run(made, line)[0] == code, line
    return made


def _run(folder: pathlib.Path, line: str) -> tuple[int, str]:
    before = pathlib.Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(cli, shlex.split(line), prog_name="gristmill")
    finally:
        os.chdir(before)
    return done.exit_code, " ".join(done.stderr.split())


ROWS = [line for line in MISTAKES.splitlines() if line[0] != "#"]


@pytest.mark.parametrize(
    ("line", "expected"), [*zip(ROWS[::2], ROWS[1::2], strict=True)], ids=ROWS[::2]
)
def test_the_message_names_what_is_wrong_and_what_helps(
    folder: pathlib.Path, line: str, expected: str
) -> None:
    code, _, words = expected.strip().partition(": ")
    ended, message = _run(folder, line)
    assert ended == int(code), message
    assert "Traceback" not in message
    missing = [word for word in words.split(" | ") if word not in message]
    assert not missing, message
