"""The graphs of all transforms: no element is a list of objects for all shards.

A `CombineGlobally` that keeps its default adds a side input that carries the whole
result; a list of objects takes half a kilobyte a shard.
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib

import apache_beam as beam
import pytest

from gristmill import transforms
from gristmill.transforms import (
    ConversionJob,
    ConvertFiles,
    IndexArrayRecords,
    PackOptions,
    ReadAllRecords,
    ReadArrayRecords,
    ReadRecords,
    ReadTFRecords,
    VerifyDataset,
    WriteArrayRecords,
)
from gristmill.transforms.beam.run_job import RunJob
from gristmill.transforms.columns.attach_job import ComputeJob
from gristmill.transforms.columns.duplicates import DuplicatesJob
from gristmill.transforms.removal.removal_job import RemovalJob
from tests.conversion.graphs import graph_of

ROOT = pathlib.Path(__file__).parents[2]
JOB = ConversionJob(inputs=("in",), output="out", name="out")
GRAPHS = [
    [ConvertFiles(jobs=(JOB,))],
    [IndexArrayRecords(files="in")],
    [beam.Create(["in"]), ReadAllRecords()],
    [ReadArrayRecords("in")],
    [ReadRecords("in")],
    [ReadTFRecords("in")],
    [VerifyDataset("in")],
    [VerifyDataset("in", quick=True)],
    [beam.Create([b"record"]), WriteArrayRecords("out", num_shards=3)],
    [beam.Create([b"record"]), WriteArrayRecords("out", shard_bytes=9)],
]
GATHERS_ALL = {"ToListCombineFn", "ToList", "ToDict", "AsList", "AsIter", "AsDict"}


def name_of(chain: list[beam.PTransform]) -> str:
    return type(chain[-1]).__name__


def test_no_transform_is_left_out() -> None:
    public = {
        transform.__name__
        for transform in (getattr(transforms, name) for name in transforms.__all__)
        if issubclass(transform, beam.PTransform)
    }
    assert public == {name_of(chain) for chain in GRAPHS}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("chain", GRAPHS, ids=name_of)
def test_no_default_and_no_side_input(chain: list[beam.PTransform]) -> None:
    graph = graph_of(*chain)
    assert not [leaf for leaf in graph.leaves if "InjectDefault" in leaf]
    # A write in shards of some size needs the number of shards: one number.
    by_size = getattr(chain[-1], "shard_bytes", None) is not None
    assert by_size or not graph.side_inputs


CONVERT = ConvertFiles(jobs=(JOB,))
APPEND = ConvertFiles(jobs=(dataclasses.replace(JOB, appends=True),))
OVERWRITE = dataclasses.replace(CONVERT, overwrite=True)
PACK = ConvertFiles(jobs=(dataclasses.replace(JOB, pack=PackOptions(length=64)),))
JOBS = {
    "index": IndexArrayRecords(files="in"),
    "verify": VerifyDataset("in"),
    "remove": RunJob(RemovalJob("in", {})),
    "attach": RunJob(ComputeJob("in", "module:function")),
    "unique": RunJob(DuplicatesJob("in")),
}


@pytest.mark.parametrize(
    ("transform", "groups", "stages"),
    [
        *((one, 4, 5) for one in (CONVERT, APPEND, OVERWRITE, PACK)),
        *((one, 2, 3) for one in JOBS.values()),
        (ReadRecords("in"), 5, 6),
        (ReadTFRecords("in"), 3, 4),
    ],
    ids=["convert", "append", "overwrite", "pack", *JOBS, "read", "read TFRecords"],
)
def test_shuffles_and_stages_are_few(transform, groups: int, stages: int) -> None:
    graph = graph_of(transform)
    assert (graph.groups, graph.stages, graph.side_inputs) == (groups, stages, ())


@pytest.mark.slow
def test_what_gathers_does_so_as_columns_and_without_a_default() -> None:
    packages = ("transforms", "pipelines", "dataset")
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    trees = {path.name: ast.parse(path.read_text("utf-8")) for path in paths}
    assert not {name for name, tree in trees.items() if _names(tree) & GATHERS_ALL}
    assert not {name for name, tree in trees.items() if _keeps_a_default(tree)}


def _names(tree: ast.AST) -> set[str]:
    return {_name(node) for node in ast.walk(tree)}


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", None) or getattr(node, "id", "")


def _keeps_a_default(tree: ast.AST) -> bool:
    called = [_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return called.count("CombineGlobally") != called.count("without_defaults")
