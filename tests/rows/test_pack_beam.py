"""Packing on Beam's runners: the bytes of local processes, also after a kill."""

from __future__ import annotations

import json
import os
import pathlib
import random
import sys
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import PackingOptions
from gristmill.transforms import (
    ConversionJob,
    ConvertFiles,
    PackOptions,
    PlanOptions,
)
from tests.support.conversion import contents
from tests.support.pipelines import counters

MODULE = """
def words(texts):
    return [[ord(letter) for letter in text] for text in texts]

words.vocabulary_size = 1000
words.special_ids = {"</s>": 2}
"""
IN_MEMORY = ("--runner=FnApiRunner",)
TWICE = (*IN_MEMORY, "--direct_runner_bundle_repeat=1")
TWO_PROCESSES = (
    *(*IN_MEMORY, "--direct_running_mode=multi_processing"),
    "--direct_num_workers=2",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "my_words.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_words", raising=False)
    rng = random.Random(7)
    with open(tmp_path / "in.jsonl", "w") as file:
        for _ in range(300):
            length = int(rng.lognormvariate(3, 1.2))
            text = "".join(rng.choices("abcdefgh ", k=length))
            file.write(json.dumps({"text": text}) + "\n")
    return tmp_path


def packing(output: str, **more: Any) -> PackingOptions:
    given = {"tokenizer": "my_words:words", "length": 64, "num_shards": 4}
    return PackingOptions(
        input=("in.jsonl",), output=output, name="d", eos="</s>", **given | more
    )


def run(options: PackingOptions, runner: Sequence[str] = ()) -> None:
    jobs = conversion_of(options)._asdict()
    convert(**jobs, beam_options=list(runner) if runner else None)


def same(output: str) -> bool:
    """Tells whether a dataset has the bytes of the local one, `local`."""
    ours, theirs = (contents(pathlib.Path(name)) for name in (output, "local"))
    return ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize(
    "runner",
    [IN_MEMORY, TWICE, pytest.param(TWO_PROCESSES, marks=pytest.mark.slow)],
    ids=["in memory", "every bundle twice", "two processes"],
)
def test_runners_make_the_same_bytes(runner: tuple[str, ...]) -> None:
    run(packing("local"))
    run(packing("beam"), runner)
    assert same("beam")


def job_of(output: str) -> ConversionJob:
    return ConversionJob(
        inputs=("in.jsonl",),
        output=output,
        name="d",
        plan=PlanOptions(kind="num_shards", value=4),
        pack=PackOptions(length=64, tokenizer="my_words:words", eos="</s>"),
    )


@pytest.mark.slow
def test_the_transform_counts_documents_and_tokens() -> None:
    run(packing("local"))
    pipeline = beam.Pipeline(options=PipelineOptions([*IN_MEMORY]))
    _ = pipeline | ConvertFiles(jobs=(job_of("beam"),))
    result = pipeline.run()
    result.wait_until_finish()
    assert same("beam")
    counted = {
        name.replace("-", "_"): value for name, value in counters(result).items()
    }
    packed = open_manifest("beam").splits["train"].packed or {}
    names = counted.keys() & packed.keys()
    assert {name: counted[name] for name in names} == {n: packed[n] for n in names}
    assert names >= {"documents", "tokens", "padding_tokens"}
    assert counted["tokens"] > 5000
