"""The commands as transforms of Beam YAML, with the options of the command line.

Each function takes the options of its command, under their names, and returns a
transform that gives rows. `examples/beam_yaml.yaml` shows how a pipeline names them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import apache_beam as beam

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.pipelines.beam.job_graphs import graph_of
from gristmill.pipelines.options.conversions import AppendOptions, ConvertOptions
from gristmill.pipelines.options.definitions import IndexOptions, VerifyOptions
from gristmill.pipelines.options.option import options_of
from gristmill.pipelines.options.packing import PackingOptions
from gristmill.pipelines.text.verification import Verification
from gristmill.transforms.beam.beam_yaml import Transform, chain, rows_of
from gristmill.transforms.beam.convert_files import ConvertFiles
from gristmill.transforms.beam.verify_dataset import VerifyDataset
from gristmill.transforms.checking.result import VerifyResult
from gristmill.transforms.conversion.commit_shards import ConversionResult


class _Indexed(NamedTuple):
    name: str
    split: str
    shards: int
    records: int


class _Verified(NamedTuple):
    dataset: str
    shards: int
    records: int
    findings: Sequence[str]
    more_findings: int


class _Converted(NamedTuple):
    output: str
    split: str
    shards: int
    records: int


def _converted(options: ConvertOptions) -> Transform:
    convert = graph_of(options)
    assert isinstance(convert, ConvertFiles)
    names = [layout.parse_edition_key(job.split)[0] for job in convert.jobs]
    output = convert.jobs[0].output

    def named(result: ConversionResult) -> Iterator[_Converted]:
        for name in names:
            split = result.manifest.splits[name]
            yield _Converted(output, name, split.shards, split.records)

    return chain(convert, "Named" >> beam.FlatMap(named), rows_of(_Converted))


def _indexed(options: IndexOptions) -> Transform:
    def named(manifest: Manifest) -> Iterator[_Indexed]:
        for name, split in manifest.splits.items():
            yield _Indexed(manifest.name, name, split.shards, split.records)

    return chain(graph_of(options), "Named" >> beam.FlatMap(named), rows_of(_Indexed))


def _verified(options: VerifyOptions) -> Transform:
    def named(result: VerifyResult) -> _Verified:
        if options.report is not None:
            Verification(quick=options.quick, **result._asdict()).write(options.report)
        findings = [str(finding) for finding in result.findings]
        counts = result.shards, result.records or 0
        return _Verified(result.dataset, *counts, findings, result.more_findings)

    verify = VerifyDataset(options.dataset, quick=options.quick)
    return chain(verify, "Named" >> beam.Map(named), rows_of(_Verified))


def _type_of(hint: Any) -> Any:
    """Returns the type of an option as Beam YAML knows it."""
    if get_origin(hint) is Literal:
        return type(get_args(hint)[0])
    return Sequence[str] if get_origin(hint) is tuple else hint


def _transform_of(
    name: str, kind: type[Any], make: Callable[[Any], Transform], about: str
) -> Callable[..., Transform]:
    """Returns a function whose parameters are the options of a command.

    Args:
        name: Its name.
        kind: The options.
        make: Returns the transform for options.
        about: First paragraph of its docstring.
    """
    hints, options = get_type_hints(kind), options_of(kind)

    def transform(**given: Any) -> Transform:
        signature.bind(**given)  # As any function says what is missing or unknown.
        for field in dataclasses.fields(kind):
            if get_origin(hints[field.name]) is tuple and field.name in given:
                paths = given[field.name]
                given[field.name] = (paths,) if isinstance(paths, str) else tuple(paths)
        return make(kind(**given))

    signature = inspect.Signature(
        [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if option.required else option.default,
                annotation=_type_of(hints[option.name]),
            )
            for option in options
        ]
    )
    described = [f"    {option.name}: {option.help}" for option in options]
    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = "\n".join([about, "", "Args:", *described])
    # Beam YAML expects an input of what is not called Read.
    vars(transform).update(__signature__=signature, _yaml_requires_inputs=False)
    return transform


convert = _transform_of(
    "convert",
    ConvertOptions,
    _converted,
    "Converts files of any format into splits; gives a row of each.",
)
append = _transform_of(
    "append",
    AppendOptions,
    _converted,
    "Appends the records of files to a split; gives one row of what it holds.",
)
pack = _transform_of(
    "pack",
    PackingOptions,
    _converted,
    "Packs documents into rows of tokens; gives a row of each split.",
)
index = _transform_of(
    "index",
    IndexOptions,
    _indexed,
    "Makes ArrayRecord files a dataset, in place; gives a row of each of its splits.",
)
verify = _transform_of(
    "verify",
    VerifyOptions,
    _verified,
    "Reads a dataset again; gives one row with a text for each thing that is wrong.",
)
