"""`gristmill demo`: TFRecords of made-up text are written, converted and read back.

A tokenizer of its words is written as well.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import tempfile
from typing import Any

import click

from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.jobs import run_conversion
from gristmill.pipelines.commands.messages import is_quiet, next_step, refuse
from gristmill.pipelines.commands.shared_options import argument
from gristmill.pipelines.options.job_options import ConvertOptions

_FILES, _RECORDS = 4, 1000
_TEXT = """
the of and to in a is that for it was on are as with they be at this from have
or by one had not but what all were when we there can an your which their said
if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who
now people my made over did down only way find use may water long little very
after words
"""
_SPECIAL = ("<unk>", "<s>", "</s>")


@command(with_json=False)
@argument("directory", required=False)
def demo(given: Any) -> None:
    """Write small TFRecord files, convert them, and show records.

    DIRECTORY, by default a new temporary one, gets 4 files of made-up text, 6 MB in
    all, a tokenizer of their words, and the dataset.
    """
    from gristmill.dataset.storage.base import explained
    from gristmill.dataset.storage.paths import path_text
    from gristmill.loader import open as open_dataset
    from gristmill.pipelines.text.records import ShownRecord

    made = given.directory or tempfile.mkdtemp(prefix="gristmill-demo-")
    directory = path_text(made, "demo")
    refuse(
        "://" in directory,
        "the demo writes to local disks only",
        where=directory,
        cure="give a local directory, or none for a temporary one",
    )
    with explained("write to the directory", directory):
        pattern = _write_tfrecords(f"{directory}/tfrecords")
        _write_tokenizer(f"{directory}/tokenizer.json")
    output = f"{directory}/demo"
    line = ("gristmill", "convert", pattern, output, "--num-shards", "8")
    click.echo(f"$ {shlex.join(line)}")
    conversion = ConvertOptions(input=(pattern,), output=output, num_shards=8)
    where = {"show_progress": not is_quiet()}
    click.echo(run_conversion(conversion, where).text())
    click.echo(f"\n$ {shlex.join(('gristmill', 'head', output))}")
    for number, record in enumerate(open_dataset(output)[:3]):
        click.echo(ShownRecord(number, record).text())
    next_step("inspect", output)


def _write_tfrecords(directory: str) -> str:
    """Writes TFRecord files; returns a pattern that matches them."""
    from gristmill.dataset.base.example import encode_example
    from gristmill.dataset.formats.tfrecord_frames import encode_frame

    os.makedirs(directory, exist_ok=True)
    rng, words = random.Random(17), _TEXT.split()
    for file in range(_FILES):
        path = os.path.join(directory, f"demo.tfrecord-{file:05d}-of-{_FILES:05d}")
        frames = []
        for number in range(file * _RECORDS, (file + 1) * _RECORDS):
            text = " ".join(rng.choices(words, k=rng.randint(40, 600)))
            frames.append(encode_frame(encode_example({"text": text, "id": number})))
        data = b"".join(frames)
        # Kept if it exists: a changed input would be an error in a repeated demo.
        if not os.path.exists(path) or os.path.getsize(path) != len(data):
            with open(path, "wb") as out:
                out.write(data)
    return os.path.join(directory, "demo.tfrecord-*")


def _write_tokenizer(path: str) -> None:
    """Writes a tokenizer of the words, for `gristmill pack`, as Hugging Face has it."""
    vocabulary = {token: i for i, token in enumerate((*_SPECIAL, *_TEXT.split()))}
    as_it_is = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": token, **as_it_is, "special": True}
            for i, token in enumerate(_SPECIAL)
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    with open(path, "w", encoding="utf-8") as out:
        json.dump(tokenizer, out, indent=1)
