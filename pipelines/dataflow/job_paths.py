"""Checks of what a job reads and writes: it is there, or it is not there yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.dataset.commit.output_place import check_not_matched
from gristmill.dataset.errors import GristmillError, InputError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.object_names import listing_of, split_path
from gristmill.pipelines.dataflow.buckets import Use, explained, retry
from gristmill.pipelines.options.definitions import ConvertOptions


def check_inputs(uses: Sequence[Use], *, client: Any) -> None:
    """Checks that an object exists under the prefix of each input pattern."""
    for use in uses:
        if use.what not in ("input", "files"):
            continue
        bucket, name = split_path(use.path)
        prefix, _ = listing_of(name)
        with explained(bucket, use.what):
            found = any(
                client.list_blobs(bucket, prefix=prefix, max_results=1, retry=retry())
            )
        if not found:
            raise InputError(
                "no input file matches",
                where=use.path,
                got=f"no object with the prefix gs://{bucket}/{prefix}",
                cure="check the path",
            )


def check_output(options: ConvertOptions, *, splits: Sequence[str]) -> list[str]:
    """Checks where the output is, and that not all splits are committed already.

    Returns:
        Remarks for the user.
    """
    files = (layout.DATASET_JSON,)
    check_not_matched(options.output, patterns=options.input, files=files)
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
    committed = [s for s in splits if manifest and s in manifest.splits]
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
