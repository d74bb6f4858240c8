"""Mistakes on the command line: their messages name what is wrong and what helps."""

import functools
import json
import re
import shlex
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipelines.commands.main import main

# A command line, then the exit code, and words of its message: what is wrong, the file
# or the option, and the option or the command that helps.
MISTAKES = """\
# New users' (the messages named neither the place nor the cure).
pack chat.jsonl out --tokenizer data/tokenizer.json
  2: messages | --chat
pack lines.jsonl out --tokenizer chat.jinja
  2: chat.jinja | Jinja | --template
audit packed --template chat.jinja --tokenizer data/tokenizer.json
  2: packed | got: packed rows | documents
convert lines out --select 'nope > 1'
  2: nope | gristmill attach
attach packed lines.jsonl --key id
  2: packed | 'id' | --number | --map
trace lines --document x@0 --batch-size 4
  2: not packed | lines | --records
trace lines --step 1 --row 0 --state notes.txt
  2: notes.txt | cannot be read | get_state
trace lines --step 1 --row 0 --state nested.json
  2: nested.json | cannot be read | get_state
trace lines --step 1 --row 0 --state step.json
  2: the state of the feed is not as it was written | the whole state
trace lines --step 1 --row 0 --state state.json --seed 1 --epochs 2
  2: --state and options of the order exclude each other | --seed, --epochs
trace x=lines y=lines --records 1
  2: --of with one of x, y
head unfinished
  3: unfinished | not a committed dataset | gristmill convert
pack lines.jsonl out --tokenizer data/tokenizer.json --select 'id > 1'
  2: select | lines.jsonl | convert the files | gristmill attach
convert chat.jsonl out --record column:messages
  2: messages | leave out --record | --record line
convert deeper.jsonl out3 --record column:a
  2: 'a.b' | to do: choose another column; or leave out --record | --record line
pack ranks.jsonl out --chat --template t.jinja --tokenizer data/tokenizer.json
  2: ranks.jsonl | none of messages | but n, rank | `gristmill audit`
pack no_fields.jsonl out --chat --template t.jinja --tokenizer data/tokenizer.json
  2: no_fields.jsonl | none of messages | but no field at all
pack roles.jsonl out --chat --template t.jinja --tokenizer data/tokenizer.json
  2: roles.jsonl | roles that --train does not know
convert chat.jsonl lines --name other --split x
  2: where: lines | got: other | --name lines
append lines chat.jsonl --split dev
  2: dev | one of train | as --split
convert paper.pdf out
  2: paper.pdf | PDF
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
  2: empty | no file at all | check the path
convert deep out
  2: where: deep | directories alone: er | check the path
convert links out
  2: where: links | broken links or special files: a.txt | check the path
head line --tokenizer data/tokenizer.json
  2: where: line | there is lines
convert lime.jsonl out
  2: lime.jsonl | there is lines.jsonl
convert 'data/tfrecrods/*' out
  2: data/tfrecrods/* | there is data/tfrecords
convert unfinished out
  3: unfinished | not a committed dataset | gristmill convert
pack nowhere out --select 'score > 1' --tokenizer data/tokenizer.json --length 64
  2: no input file | nowhere | check the path
head nowhere --tokenizer data/tokenizer.json
  2: no input file | nowhere | nothing there | check the path
convert zero.jsonl out
  2: zero.jsonl | 0 bytes | --on-corrupt
convert broken.jsonl out
  3: broken.jsonl, line 2 | --on-corrupt skip
convert lines.jsonl chat.jsonl
  2: the output is a file | chat.jsonl | got: a file of 88 bytes | last argument
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
  2: nowhere.json | no such file | check the path
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
convert lines.jsonl out --shard-size 0
  2: not a size | '0' | --shard-size
convert lines.jsonl out --shard-size 1e3
  2: not a size | '1e3' | --shard-size
convert lines.jsonl out --shard-size '1 2'
  2: not a size | '1 2' | --shard-size
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
pack lines.jsonl out --tokenizer data/tokenizer.json --length 1
  2: --length
pack lines.jsonl out --tokenizer data/tokenizer.json --column body
  2: body | text, id | --column
pack lines.jsonl out --tokenizer data/tokenizer.json --bos zebra
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
  2: nope | gristmill attach | --map
remove lines --records notes.txt --column id
  2: notes.txt | a value of id in each line | hello
rollback lines 9
  2: edition 9 | edition 1 | gristmill inspect
inspect lines --split dev
  2: dev | train | --split
head one.csv
  2: one.csv | named as a table | number of commas | --input-format csv
head lines --offset 99
  2: 99 | below 20 | --offset
head lines --edition 7
  2: edition 7 | edition 1
trace lines --records x
  2: --records | x | A:B
trace lines --records ²
  2: --records cannot be read | ²
trace lines --records 1_0
  2: --records cannot be read | 1_0
trace lines --records 9999999999999999999
  2: --records cannot be read | 9999999999999999999
trace lines --records 7:7
  2: --records cannot be read | 7:7
trace lines --records plain=7
  2: plain=7 | with --of
trace a=lines b=lines --records 1 --of z
  2: no such dataset | z
trace lines --records 1 --stop-epoch 3
  2: batch size is missing
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
pack chat.jsonl out --tokenizer data/tokenizer.json --chat
  2: --template
pack lines.jsonl out --template chat.jinja
  2: --template | --chat
audit chat.jsonl --tokenizer data/tokenizer.json
  2: --template
attach lines
  2: files | --map
attach lines lines.jsonl
  2: --key or --number
attach lines lines.jsonl --key id --number n
  2: exactly one option must match rows to records
attach lines --map json:dumps --key id
  2: --map and --key
attach lines notes.txt --key id
  2: notes.txt | not a table that can be joined
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
remove lines --records data/tfrecords/demo.tfrecord-00000-of-00004
  2: UTF-8
# Options of runners that would have no effect.
verify lines --wait
  2: --runner DataflowRunner
index lines --cross-region --runner FnApiRunner
  2: --runner DataflowRunner
index lines --install-on-workers
  2: --runner DataflowRunner
verify lines -- --region=x
  2: add --runner
index lines --workers=2 --runner FnApiRunner
  2: --workers
unique lines --runner=DataflowRunner
  2: cannot be found on Dataflow
attach lines --map=m:f --runner=DataflowRunner
  2: one machine
attach lines b --number=n --runner FnApiRunner
  2: only --map runs on Beam
convert a b --num-shrads=3 --runner FnApiRunner
  2: No such option
convert a b --region=x
  2: No such option
verify lines --runner FnApiRunner -- --max_workers=7
  2: Beam would ignore this option | got: --max_workers=7 | give --max_num_workers
verify lines --runner dask -- --max-num-workers=7
  2: Beam would ignore this option | give --max_num_workers
verify lines --runner DataflowRunner -- --nonsense
  2: Beam would ignore this option | --nonsense | check its name
verify lines --runner FnApiRunner -- 7
  2: Beam would ignore this option | got: 7 | check its name
verify lines --runner FnApiRunner --dry_run=True
  2: only applies to Dataflow
verify lines --runner ''
  2: unknown Beam runner
verify lines --runner apache_beam.runners.nope.Nope
  2: Beam runner | No module named 'apache_beam.runners.nope'
verify lines --runner apache_beam.runners.runner.Nope
  2: Beam runner | has no attribute 'Nope'
verify lines --runner os.getcwd
  2: this is not a Beam runner
# Before anything is looked at: gs:// would ask for credentials.
convert gs://x/y gs://z --runner Nope
  2: DaskRunner, DataflowRunner, DirectRunner, FlinkRunner, FnApiRunner
verify gs://z --runner=Nope
  2: unknown Beam runner
index lines --runner FnApi --streaming=x
  2: does not take these
"""

# Command lines, of which the last fails, after lines of a shell ($) where something
# must have happened; then, indented, those that follow the cure of its message.
CURES = """
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
pack rows out TOKENS
  pack a.jsonl out2 TOKENS
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
convert deeper.jsonl out --record column:a
  convert deeper.jsonl out
  convert deeper.jsonl out2 --record line
convert a.jsonl a.csv out
  convert a.jsonl out
  append out a.csv
pack a.jsonl a.csv out TOKENS
  pack a.jsonl out TOKENS
  pack a.csv out2 TOKENS
convert a.txt out --input-format jsonl
  convert a.txt out --input-format text
  convert a.txt out2
convert d out --split nope
  convert d out --split train
  convert d out2
convert a.csv out --nulls skip
  convert a.csv out
pack a.jsonl out TOKENS --column id
  pack a.jsonl out TOKENS --column text
  pack a.jsonl out2 --column id --vocabulary-size 50
pack a.csv out TOKENS --record line
  pack a.csv out TOKENS
pack a.jsonl out TOKENS --columns text
  pack a.jsonl out TOKENS
pack a.jsonl out TOKENS --add-special-tokens
  pack a.jsonl out TOKENS
  pack a.jsonl out2 TOKENS --bos <s> --eos </s>
convert a.jsonl two
convert a.jsonl two --split test
unique two --by record
  unique two --by record --split test
convert a.txt texts
unique texts
  unique texts --by text:-
  unique texts --by record --overwrite
trace d --records 3 --batch-size 10 --first-epoch 4 --stop-epoch 4
  trace d --records 3 --batch-size 10 --first-epoch 4 --stop-epoch 5
convert a.csv out --columns text:int
  convert a.csv out --columns text:string
convert a.csv out --columns *,nope:int
  convert a.csv out --columns *,id:int
pack d out --column id --vocabulary-size 5
  pack d out --column id --vocabulary-size 50
pack a.jsonl out TOKENS --fast
  pack a.jsonl out TOKENS
$ mkdir out; touch out/out-train.array_record-00007-of-00009
convert a.jsonl out
  convert a.jsonl out --overwrite
  convert a.jsonl other
$ echo { > d/dataset.json
inspect d
  convert a.jsonl d --overwrite
$ mkdir files; cp d/*array_record-* files
verify files
  index files/*
  verify files
$ truncate -s -5 d/index/d-train.shards.npz
head d
  convert a.jsonl d --overwrite
  head d
$ rm d/d-train.array_record-00000-of-00001
head d
  convert a.jsonl d
  verify d --quick
  head d
$ truncate -s -5 data/tfrecords/demo.tfrecord-00002-of-00004
convert data/tfrecords/* out
  convert data/tfrecords/* out --on-corrupt skip
convert tables/bytes.parquet out --record column:a
  convert tables/bytes.parquet out --record column:a --on-corrupt skip
$ flip rows/index/rows-train.array_record-00000-of-00001.segments 30
trace rows --step 0 --row 0 --token 3 --batch-size 2
  pack a.jsonl rows TOKENS --eos </s> --length 64 --overwrite
  trace rows --step 0 --row 0 --token 3 --batch-size 2
$ truncate -s -9 rows/index/rows-train.array_record-00000-of-00001.segments
trace rows --step 0 --row 0 --token 3 --batch-size 2
  pack a.jsonl rows TOKENS --eos </s> --length 64 --overwrite
  trace rows --step 0 --row 0 --token 3 --batch-size 2
$ rm d/d-train.array_record-00000-of-00001
append d b.jsonl
rollback d 1
  inspect d
  rollback d 2
attach d ranks.jsonl --number n
  attach d ranks.jsonl --number n --missing 0
remove d --records line_3
  remove d --records line_3 --column text
remove d --records two_numbers
  remove d --records two_numbers --allow-missing
$ mkdir files d2; for i in d/d-*; do cp $i files; cp $i d2/d2-${i#*/d-}; done
index d2/*
convert files/d-* d2 --name d2
  convert files/d-* d2 --split lines
  convert files/d-* other
$ mkdir lost; cp d/*array_record-* lost
index lost/*
$ rm lost/dataset.json
convert lost out
  convert lost/*array_record* out
$ mkdir files; cp data/demo/*array_record-* files; rm files/*00002-of-00008
index files/*
  index files/* --split train
$ mkdir files; cp {data/demo,d}/*array_record-* files
index files/*
  index files/d-* --name d
convert half.csv e
append e a.csv
  append e a.csv --columns *,id:float
$ truncate -s -5 data/tfrecords/demo.tfrecord-00002-of-00004
convert data/tfrecords/* out --on-corrupt skip --max-corrupt 0
  convert data/tfrecords/* out --on-corrupt skip --max-corrupt 1
$ mkdir files; cp data/tfrecords/demo.tfrecord-00000-of-00004 files/a.tfrecord; touch \
    files/b.tfrecord
convert files/*.tfrecord out
  convert files/*.tfrecord out --on-corrupt skip
convert column.txt out --columns line
  convert column.txt out --columns line --input-format csv
  convert column.txt out2
convert tables/a?.parquet out
  convert tables/a?.parquet out --columns a
  convert tables/ab.parquet out2 --split t
  convert tables/ac.parquet out2 --split u
$ rm d/index/d-train.array_record-00000-of-00001.index
convert d out
  convert d/*array_record-* out
convert tables/unknown.parquet out --record column:a
  convert tables/unknown.parquet out --record column:a --nulls skip
convert tables/null.parquet out --record column:a
  convert tables/null.parquet out --record column:a --nulls skip
convert tables/large.parquet out
  convert tables/large.parquet out --columns *,a:float
convert tables/large.parquet out --columns *,a:int
  convert tables/large.parquet out --columns *,a:float
convert tables/ab.parquet out --record column:b
  convert tables/ab.parquet out --record column:a
  convert tables/ab.parquet out2
convert tables/nested.parquet out
  convert tables/nested.parquet out --columns b
  convert tables/nested.parquet out2 --record column:b
convert tables/twice.parquet out
  convert tables/twice.parquet out --columns b
pack --chat c.jsonl out --template t.jinja
  pack --chat c.jsonl out --template t.jinja TOKENS
pack --chat c.jsonl out TOKENS --template bad.jinja --max-rejected 0
  pack --chat c.jsonl out TOKENS --template t.jinja --max-rejected 0
pack --chat tables/chat.parquet out TOKENS --template t.jinja --column nope \
    --tools-column no --weight-column none
  pack --chat tables/chat.parquet out TOKENS --template t.jinja --column a
$ echo PK > d/index/d-train.inputs.npz
append d a.csv
  convert a.jsonl d --overwrite
  append d a.csv
plan a.jsonl --map own:nothing
  plan a.jsonl
trace d --state state.json --step 1 --row 2 --batch-size 10
  trace d --step 1 --row 2 --batch-size 10
trace a=rows b=rows --step 1 --row 0 --batch-size 2 --weights a=1,b=2 --token-weights \
    a=1,b=2
  trace a=rows b=rows --step 1 --row 0 --batch-size 2 --weights a=1,b=2
  trace a=rows b=rows --step 1 --row 0 --batch-size 2 --token-weights a=1,b=2
trace a=d b=d --step 1 --row 0 --batch-size 2 --tokens-per-row 5
  trace a=d b=d --step 1 --row 0 --batch-size 2
  trace a=d b=d --step 1 --row 0 --batch-size 2 --tokens-per-row 5 --token-weights \
      a=1,b=2
pack d packed_d TOKENS --length 64
remove packed_d --records number
  remove d --records number
  pack d packed_d TOKENS --length 64 --overwrite
convert splits/* out
  convert splits/a-train-* out --split train
  convert splits/a-test-* out --split test
  convert splits/* out2 --split all
convert hive out
  convert hive/*/*.parquet out
convert hf out --split test
  convert hf out --split train
  convert hf out2
$ cp tables/ab.parquet hf/data/more.parquet
convert hf out
  convert hf/data/train-* out --split train
$ printf -- '---\\nconfigs: 3\\n---\\n' > hf/README.md
convert hf out
  convert hf/data/* out --split train
$ mkdir files; cp d/*array_record-* files; cp d/d-train.array_record-00000-of-00001 \
    files/other
index files/*
  index files/* --split all
convert a.jsonl out --map own:number
  convert a.jsonl out --map own:same
convert one.csv out --on-corrupt skip
  convert one.csv out --input-format csv --overwrite
convert saved out
  convert saved/train/*.parquet out
convert ones.csv out --input-format csv
  convert ones.csv out --input-format text
convert cut.jsonl out
  convert cut.jsonl out --on-corrupt skip
$ flip data/demo/demo-train.array_record-00001-of-00008 200000
convert data/demo out
  convert data/demo out2 --on-corrupt skip
  convert data/tfrecords/* data/demo --num-shards 8 --overwrite
  convert data/demo out
convert tables/inner.parquet out
  convert tables/inner.parquet out --columns b
convert tables/unsigned.parquet out
  convert tables/unsigned.parquet out --columns b
convert tables/invalid.parquet out
  convert tables/invalid.parquet out --on-corrupt skip
pack data/demo out TOKENS --column -
  pack data/demo out TOKENS --column - --map own:text
pack tables/negative.parquet out --column a --vocabulary-size 9
  pack tables/negative.parquet out --column a --vocabulary-size 9 --map own:small
pack lines.csv out TOKENS
  pack lines.csv out TOKENS --input-format text
pack a.jsonl out --tokenizer own:tokens --add-special-tokens
  pack a.jsonl out --tokenizer own:tokens --eos 1
"""
FILES = {
    "lines.jsonl": "".join(f'{{"text": "the {n}", "id": {n}}}\n' for n in range(20)),
    "a.jsonl": "".join(f'{{"id": {n}, "text": "line {n}"}}\n' for n in range(50)),
    "a.csv": "id,text\n" + "".join(f"{n},line {n}\n" for n in range(50)),
    "a.txt": "".join(f"line {n}\n" for n in range(50)),
    "b.jsonl": '{"id": 9, "text": "b"}\n',
    "broken.jsonl": '{"text": "a"}\n{"text":\n',
    "cut.jsonl": '{"a": 1}\n' * 200 + '{"a": \n',
    "zero.jsonl": "",
    "deeper.jsonl": '{"a": [{"b": [{"c": 1}]}, {"b": []}]}\n',
    "deep/er/a.txt": "a\n",
    "deep/index/a.txt": "a\n",
    "paper.pdf": "%PDF-1.7\n1 0 obj\n",
    "roles.jsonl": '{"messages": [{"role": "Human", "content": "a"}]}\n',
    "ranks.jsonl": '{"n": 0, "rank": 1}\n',
    "no_fields.jsonl": "{}\n",
    "table.csv": "id,text\n1,a\n",
    "half.csv": "id,text\n1.5,a\n2.5,b\n",
    "one.csv": "a\n1\n",
    "ones.csv": "1,1\n2,2\n",
    "lines.csv": "a line\nanother line\n",
    "column.txt": "line\nfirst\nsecond\n",
    "notes.txt": "hello\n",
    "numbers.txt": "999999\n",
    "number": "3\n",
    "two_numbers": "3\n5000\n",
    "line_3": "line 3\n",
    "state.json": "{}",
    "step.json": '{"version": 1, "step": 0}',
    "nested.json": "[" * 100_000,
    "splits/a-train-00000-of-00001.jsonl": '{"a": 1}\n',
    "splits/a-test-00000-of-00001.jsonl": '{"a": 1}\n',
    "saved/dataset_dict.json": '{"splits": ["train"]}',
    "chat.jinja": "{% for m in messages %}{{ m.content }}{% endfor %}",
}
SAID = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
CHATS = [{"messages": SAID}, {"messages": [*SAID, {"role": "user", "content": "x"}]}]
FILES["chat.jsonl"], FILES["c.jsonl"] = (
    "".join(json.dumps(chat) + "\n" for chat in chats) for chats in (CHATS[:1], CHATS)
)
FILES["t.jinja"] = (
    "{% for m in messages %}{{ m.role + m.content + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)
FILES["bad.jinja"] = (
    FILES["t.jinja"]
    + "{% if messages|length > 2 %}{{ raise_exception('x') }}{% endif %}"
)
FILES["own.py"] = """\
from gristmill.dataset import encode_example

def nothing(record): return None
def number(record): return 1
def same(record): return record
def text(record): return b"a text"
def small(record): return encode_example({"a": [1, 2]})
def tokens(texts): return [[2] * len(text) for text in texts]
tokens.vocabulary_size = 3
"""
INVALID = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"x\xff")
TABLES = {
    "tables/bytes": {"a": pa.array([b"x", b"\xff", b"z"]).view(pa.string())},
    "tables/ab": {"a": ["x"], "b": [1]},
    "tables/ac": {"a": ["y"], "c": [2]},
    "tables/null": {"a": ["x", None, "z"]},
    "tables/unknown": {"a": ["x", None]},
    "tables/large": {"a": [16777217.0, 0.5], "b": ["x", "y"]},
    "tables/nested": {"a": [[["x"], ["y", "z"]]], "b": ["z"]},
    "tables/twice": pa.Table.from_arrays([pa.array([1])] * 3, ["a", "a", "b"]),
    "tables/chat": {"a": [json.dumps(SAID)]},
    "tables/inner": {"a": [[1, None]], "b": ["x"]},
    "tables/unsigned": {"a": pa.array([2**63], pa.uint64()), "b": ["x"]},
    "tables/invalid": {"a": pa.StringArray.from_buffers(2, *INVALID)},
    "tables/negative": {"a": [[-1, 2]]},
    "hive/day=1/a": {"a": ["x", "y"]},
    "hive/day=2/b": {"a": ["x", "y"]},
    "hf/data/train-00000-of-00001": {"a": ["x", "y"]},
    "saved/train/a": {"a": ["x", "y"]},
}
TOKENS = "--tokenizer data/tokenizer.json --accept unknown"
DATASETS = f"""\
demo data
convert lines.jsonl lines
pack lines.jsonl packed --tokenizer data/tokenizer.json --length 32
convert a.jsonl d
pack a.jsonl rows {TOKENS} --eos </s> --length 64"""
FLIP = 'set -e; flip() { printf mistaken | dd of="$1" bs=1 seek="$2" conv=notrunc; }; '


def called(line):
    """Calls a command of ours in this process, and returns its exit code."""
    try:
        main(shlex.split(line))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    for name in (*FILES, *TABLES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name in ("empty", "links"):
        (folder / name).mkdir()
    (folder / "links/a.txt").symlink_to("gone")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for name, columns in TABLES.items():
        # Without statistics nothing tells of nulls beforehand.
        known = name != "tables/unknown"
        table = pa.table(columns)
        pq.write_table(table, f"{folder / name}.parquet", write_statistics=known)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert {*map(called, DATASETS.splitlines())} == {0}
        assert called("convert broken.jsonl unfinished") == 3
    return folder


@pytest.fixture(scope="module")
def shared(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared") / "folder"
    return shutil.copytree(made, folder, symlinks=True)


ROWS = [line for line in MISTAKES.splitlines() if line[0] != "#"]


@pytest.mark.parametrize(
    ("line", "expected"), [*zip(ROWS[::2], ROWS[1::2], strict=True)], ids=ROWS[::2]
)
def test_the_message_names_what_is_wrong_and_what_helps(
    shared, monkeypatch, capfd, line, expected
):
    monkeypatch.chdir(shared)
    code, _, words = expected.strip().partition(": ")
    ended = called(line)
    message = " ".join(capfd.readouterr().err.split())
    assert ended == int(code), message
    assert "Traceback" not in message
    missing = [word for word in words.split(" | ") if word not in message]
    assert not missing, message


def options_of(text):
    return {*re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}


def forget():
    """Empties the caches of the package: they know files by paths that are relative."""
    for name, module in list(sys.modules.items()):
        if name.startswith("gristmill."):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "cured"),
    re.findall(r"((?:^\S.*\n)+)((?:^  .*\n)+)", CURES, re.MULTILINE),
    ids=lambda text: text.strip().splitlines()[-1],
)
def test_what_the_message_says_helps(made, tmp_path, monkeypatch, capfd, lines, cured):
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "folder", symlinks=True))
    forget()
    *before, wrong = lines.replace("TOKENS", TOKENS).splitlines()
    for line in before:
        if line.startswith("$"):
            subprocess.run(["bash", "-c", FLIP + line[1:]], check=True, timeout=60)
        else:
            assert called(line) == 0
    capfd.readouterr()
    assert called(wrong) not in (0, 130)
    _, _, cure = capfd.readouterr().err.partition("to do:")
    cured = cured.replace("TOKENS", TOKENS)
    for line in cured.splitlines():
        assert called(line) == 0, capfd.readouterr().err
    assert cure
    # A function of the user's, and Dataflow, are not tried here.
    said = options_of(cure)
    followed = options_of(cured + wrong)
    assert said & followed or not said - {"--map", "--runner"}, cure
