"""Checks of the output of a conversion: it can be read, and is not finished."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.dataset.base.errors import GristmillError, InputError, some_of
from gristmill.dataset.commit.output_place import check_not_matched
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.read_manifest import read_manifest
from gristmill.dataset.storage.paths import path_texts
from gristmill.pipelines.options.conversions import ConvertOptions


def check_output(options: ConvertOptions, *, splits: Sequence[str]) -> list[str]:
    """Checks where the output is, and that not all splits are committed already.

    Returns:
        Remarks for the user.
    """
    files = (layout.DATASET_JSON,)
    patterns = path_texts(options.input, "input")
    check_not_matched(options.output, patterns=patterns, files=files)
    try:
        manifest = read_manifest(options.output)
    except GristmillError as e:
        if options.overwrite:
            return []
        raise InputError(
            "the output cannot be read",
            where=options.output,
            got=str(e),
            cure="repair it, or choose another output",
        ) from e
    committed = [s for s in splits if manifest and manifest.find(s) is not None]
    if committed and options.overwrite:
        return [
            f"split {', '.join(committed)} stays until the new one is finished; "
            "meanwhile the bucket holds both"
        ]
    if committed and len(committed) == len(splits):
        raise InputError(
            "the output is committed already",
            where=f"{options.output}, split {some_of(committed)}",
            cure="see it with gristmill inspect, choose another output or --split, or "
            "replace it with --overwrite",
        )
    return [
        f"split {split} is committed already and will be kept" for split in committed
    ]
