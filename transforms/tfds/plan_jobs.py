"""Converting a TFDS directory: its files are checked, and each split gets a job."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from gristmill.dataset.arrayrecord.writer_options import Check, WriterOptions
from gristmill.dataset.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import TFDS_INFO_JSON
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from gristmill.transforms.tfds.directory import TfdsSplit, read_tfds_directory

_SHOWN = 3


class TfdsConversion(NamedTuple):
    """How to convert a TFDS directory.

    Attributes:
        jobs: A job for each split that has files.
        features: The schema: the content of `features.json`.
    """

    jobs: tuple[ConversionJob, ...]
    features: dict[str, Any]


def tfds_jobs(
    directory: str,
    output: str,
    *,
    name: str | None = None,
    splits: Sequence[str] | None = None,
    plan: PlanOptions | None = None,
    writer: WriterOptions | None = None,
    map: str | None = None,
    on_corrupt: Literal["fail", "quarantine"] = "fail",
    max_corrupt: int = 100,
    check: Check = "records",
) -> TfdsConversion:
    """Plans the conversion of a TFDS directory, a job for each split.

    Args:
        directory: The TFDS directory.
        output: The dataset's directory.
        name: The dataset's name; by default the one that it has.
        splits: Which splits; by default all.
        plan: As in `ConversionJob`, for each split on its own, like all below.
        writer: See there.
        map: See there. `features.json` has to fit what the function returns.
        on_corrupt: See there.
        max_corrupt: See there.
        check: See there.

    Raises:
        InputError: The directory cannot be used, or not all of it is there.
    """
    source = read_tfds_directory(directory)
    if _same_directory(source.path, output):
        raise InputError(
            "the output is the TFDS directory itself",
            where=output,
            expected="another directory: the metadata describes one format only",
            cure="choose another output; it can replace the input afterwards",
        )
    for asked in splits or ():
        if asked not in source.splits:
            raise InputError(
                "the TFDS directory has no such split",
                where=source.path,
                expected=f"one of {', '.join(source.splits)}",
                got=asked,
                cure="choose one of these with --split, or leave it out to convert all",
            )
    for split in source.splits.values():
        _check_files(source.path, split)
    wanted = [
        split
        for split in source.splits.values()
        if split.files and (splits is None or split.name in splits)
    ]
    if not wanted:
        raise InputError(
            "the TFDS directory has no files to convert",
            where=source.path,
            expected="a split with shardLengths",
            got=f"the splits {', '.join(splits or source.splits) or '(none)'}",
            cure="choose a split that has records, or let TFDS prepare them again",
        )
    jobs = tuple(
        ConversionJob(
            inputs=(split.pattern,),
            output=output,
            name=name or source.info["name"],
            split=split.name,
            plan=plan or PlanOptions(),
            writer=writer or WriterOptions(),
            map=map,
            on_corrupt=on_corrupt,
            max_corrupt=max_corrupt,
            check=check,
            allow_empty_files=0 in split.file_records,
        )
        for split in wanted
    )
    return TfdsConversion(jobs, source.features)


def _check_files(path: str, split: TfdsSplit) -> None:
    """Checks that exactly the files that a split should have are there."""
    named = re.compile(re.escape(layout.join(path, "")) + split.relatives)
    folders = {file.rpartition("/")[0] for file in split.files} or {path}
    sizes = {
        info.path: info.size_bytes
        for folder in sorted(folders)
        for info in storage_for(path).list(folder)
        if named.fullmatch(info.path)
    }
    missing = [file for file in split.files if file not in sizes]
    surplus = sorted(sizes.keys() - set(split.files))
    if missing or surplus:
        what, files = ("missing", missing) if missing else ("not among them", surplus)
        raise InputError(
            f"the files of split {split.name} are not those that {TFDS_INFO_JSON} "
            "lists",
            where=f"{path}, {what}: "
            + ", ".join(file.rpartition("/")[2] for file in files[:_SHOWN])
            + (", ..." if files[_SHOWN:] else ""),
            expected=f"{len(split.files):,} files",
            got=f"{len(sizes):,} files, {len(missing):,} missing, {len(surplus):,} "
            "more than listed",
            cure="copy the missing files from where the dataset was made"
            if missing
            else "move files of another version of the dataset elsewhere",
        )
    for file, records in zip(split.files, split.file_records, strict=True):
        if records and not sizes[file]:
            raise InputError(
                f"a file of split {split.name} is empty",
                where=file,
                expected=f"{records:,} records, as {TFDS_INFO_JSON} says",
                got="0 bytes, as after an interrupted copy",
                cure="copy it again from where the dataset was made",
            )


def _same_directory(first: str, second: str) -> bool:
    if "://" in first or "://" in second:
        return first.rstrip("/") == second.rstrip("/")
    return os.path.realpath(first) == os.path.realpath(second)
