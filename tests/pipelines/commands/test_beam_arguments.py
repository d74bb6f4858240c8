"""Options of Beam, told from ours."""

from __future__ import annotations

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill.pipelines.commands.beam_arguments import split_arguments
from gristmill.pipelines.commands.main import find_command
from gristmill.pipelines.options.definitions import PIPELINES, template_options


def test_no_parameter_has_a_name_of_beams():
    known = PipelineOptions([]).get_all_options()
    for pipeline in PIPELINES:
        assert not {o.name for o in template_options(pipeline)} & known.keys()


@pytest.mark.parametrize(
    ("arguments", "ours", "beams"),
    [
        ("a b", "a b", ""),
        ("a --project p b", "a b", "--project p"),
        ("a b --temp-location=gs://x", "a b", "--temp_location=gs://x"),
        ("a b --num-shards 3 --num_workers 4", "a b --num-shards 3", "--num_workers 4"),
        # --name and --map have values of their own, whatever they look like.
        ("--name --project a b", "--name --project a b", ""),
        ("a --no_auth b", "a b", "--no_auth"),
        (
            "a b --experiments x --experiments=y",
            "a b",
            "--experiments x --experiments=y",
        ),
        ("a b --nonsense 1", "a b --nonsense 1", ""),
        ("a b --overwrite --streaming", "a b --overwrite", "--streaming"),
    ],
)
def test_options_of_beam_are_told_from_ours(arguments, ours, beams):
    command = find_command("convert")
    found = split_arguments(command, ["convert", *arguments.split()])
    assert found == (["convert", *ours.split()], beams.split())
