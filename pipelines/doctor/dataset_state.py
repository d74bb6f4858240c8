"""The state of a dataset: jobs that never committed, leftovers, and chunks."""

from __future__ import annotations

import glob
import re
import shlex
import time
from collections.abc import Iterable, Iterator

from gristmill.dataset.base.errors import InvalidDatasetError, NotADatasetError
from gristmill.dataset.commit.garbage import find_leftovers, garbage_editions
from gristmill.dataset.commit.listings import Listings
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.open_manifest import not_a_dataset
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.finding import Finding, error, ok, warning
from gristmill.pipelines.text.edition_history import glob_warning, replaced_text
from gristmill.pipelines.text.formatting import plural, size_text
from gristmill.pipelines.text.status import SplitStatus, Status, read_status

_SHOWN = 3


def look_at_jobs(place: DatasetPlace) -> Iterator[Finding]:
    """Yields uncommitted jobs and leftovers, or that all is committed.

    Raises:
        NotADatasetError: There is neither a dataset nor a job.
        TimeoutError: The place does not answer.
    """
    manifest = place.manifest()
    try:
        status = read_status(place.path)
    except NotADatasetError:
        raise not_a_dataset(place.path) from None
    except InvalidDatasetError as e:
        # A job that was killed as it began, beside splits that can be read.
        yield (error if manifest is None else warning)(
            f"{e.summary}, {e.where}",
            why="no job can continue with it, and readers do not see the split",
            cure=e.cure or "run the same command again with --overwrite",
        )
        return
    found = [*_jobs(place, status, manifest)]
    if not found and manifest is not None:
        found = [*_left_over(place, manifest)]
    if manifest is not None:
        found += _kept(place, manifest)
    yield from found
    if manifest is not None and not found:
        records = sum(split.records for split in manifest.splits.values())
        shards = sum(split.shards for split in manifest.splits.values())
        yield ok(
            f"{manifest.name}: {plural(records, 'record')} in "
            f"{plural(shards, 'shard')}, committed; nothing is left over"
        )


def _jobs(
    place: DatasetPlace, status: Status, manifest: Manifest | None
) -> Iterator[Finding]:
    path = place.path
    for split in status.splits:
        if split.committed:
            continue
        give_up = _giving_up(path, split.split)
        yield _unfinished(place, split, give_up, fatal=manifest is None)
    for one in status.writing:
        yield warning(
            f"split {one.split}: written by a program and not committed, "
            f"{one.finished_parts:,} of {plural(one.parts, 'part')} finished",
            why="readers do not see it, and its files take space",
            cure="run the program again with resume=True"
            + _or_give_up(_deletion_of_parts(path, one.split)),
        )


def _unfinished(
    place: DatasetPlace, split: SplitStatus, give_up: str, *, fatal: bool = False
) -> Finding:
    done = f"{split.finished_shards:,} of {plural(split.shards, 'shard')} finished"
    seen = f"split {split.split}: a job is not committed, {done}"
    if place.remote:
        look = f"gristmill status {shlex.quote(place.path)}"
        return (error if fatal else warning)(
            f"{seen}; whether one works at it, its progress tells",
            why="readers do not see the split, and its files take space",
            cure=f"see it with `{look}`; where nothing moves, run the same command "
            "again, which keeps finished shards",
        )
    if _is_running(place.path, split.split):
        return ok(f"{seen}; a process of this machine works at it")
    return (error if fatal else warning)(
        f"{seen}; no process of this machine works at it{_age(place.path)}",
        why="readers do not see the split, and its files take space",
        cure="run the same command again, which keeps finished shards"
        + _or_give_up(give_up),
    )


def _or_give_up(command: str) -> str:
    return f"; to give up: {command}" if command else ""


def _deletion_of_parts(path: str, split: str) -> str:
    """Returns the command that deletes a program's output, "" if unknown."""
    if storage_for(path).remote:
        return ""
    # The name of another split can end so.
    found = [
        marker
        for key in (split, f"{split}.e*")
        for marker in glob.glob(
            layout.join(glob.escape(path), layout.write_path("*", key))
        )
    ]
    if len(found) != 1:
        return ""
    own = layout.base_name(found[0]).removesuffix(".write.json")
    place = layout.join(path, f"tmp-{own}")
    return f"rm -r {shlex.quote(place)} {shlex.quote(found[0])}"


def _giving_up(path: str, split: str) -> str:
    """Returns the command that deletes a job's part of a new split, "" if unknown.

    Appended shards are named like those of the split: no pattern is safe for them.
    """
    jobs = layout.join(glob.escape(path), layout.INDEX_DIR, f"*-{split}.job.json")
    found = storage_for(path).match(jobs)
    if len(found) != 1 or "." in split:
        return ""
    own = layout.base_name(found[0].path).removesuffix(".job.json")
    root = shlex.quote(path)
    folders = ("", f"{layout.INDEX_DIR}/", f"{layout.QUARANTINE_DIR}/")
    files = " ".join(f"{root}/{folder}{shlex.quote(own)}.*" for folder in folders)
    return f"rm -rf {root}/tmp-{shlex.quote(own)} {files}"


def _is_running(path: str, split: str) -> bool:
    storage, place = storage_for(path), glob.escape(path)
    name = f"tmp-*-{glob.escape(split)}"
    found = glob.glob(layout.join(place, name))
    return any(storage.is_in_use(directory) for directory in found)


def _age(path: str) -> str:
    index = layout.join(path, layout.INDEX_DIR)
    noted = [info.noted_ns for info in storage_for(path).scan(index)]
    if not noted:
        return ""
    minutes = round(max(0, time.time() - max(noted) / 1e9) / 60)
    age = plural(minutes, "minute")
    if minutes >= 120:
        age = plural(minutes // 60, "hour")
    return f"; the last file changed {age} ago"


def _kept(place: DatasetPlace, manifest: Manifest) -> Iterator[Finding]:
    for name, split in sorted(manifest.splits.items()):
        if split.replaced:
            yield warning(
                f"split {name}: {replaced_text(place.path, split)} are kept",
                why=glob_warning(manifest, name),
                cure=f"once no run reads them: {_clean(place)}",
            )


def _clean(place: DatasetPlace) -> str:
    return f"gristmill clean {shlex.quote(place.path)}"


def _left_over(place: DatasetPlace, manifest: Manifest) -> Iterator[Finding]:
    files = sorted(find_leftovers(place.path, manifest, Listings(place.path)))
    if not files:
        return
    paths = [layout.join(place.path, file) for file in files]
    found = storage_for(place.path).stat_all(paths)
    size = sum(info.size_bytes for info in found if info is not None)
    yield warning(
        f"{plural(len(files), 'file')} of commands that were killed, or still run: "
        f"{size_text(size)}, such as {files[0]}",
        why="they are not part of the dataset, and take space",
        cure=_clean(place)
        if any(_has_garbage(place, manifest, name) for name in manifest.splits)
        else _deletion(place, files) + ", once no command writes there",
    )


def _has_garbage(place: DatasetPlace, manifest: Manifest, split: str) -> bool:
    found = garbage_editions(place.path, manifest, split)
    return bool(found.described or found.tables)


def _deletion(place: DatasetPlace, files: Iterable[str]) -> str:
    """Returns a command that deletes files, whole directories of jobs at once."""
    tops = dict.fromkeys(
        file.partition("/")[0] if file.startswith("tmp-") else file for file in files
    )
    if len(tops) > _SHOWN:
        return f"gristmill verify --quick {shlex.quote(place.path)} names them; delete"
    command = "gcloud storage rm -r" if place.remote else "rm -r"
    paths = (shlex.quote(layout.join(place.path, top)) for top in tops)
    return f"{command} {' '.join(paths)}"


_GROUP_SIZE = re.compile(r"(?:^|,)group_size:(\d+)(?:,|$)")


def look_at_group_size(place: DatasetPlace) -> Iterator[Finding]:
    """Yields the cost of random reads in each split with several records in a chunk."""
    manifest = place.known()
    if manifest is None:
        return
    single = []
    for name, split in sorted(manifest.splits.items()):
        size = max((_group_size(part) for part in split.parts), default=1)
        if size <= 1 or not split.records:
            single.append(name)
            continue
        group = min(size, split.records)
        record = split.raw_bytes / split.records
        stored = split.file_bytes / split.records
        out = shlex.quote(f"{place.path}-single")
        again = f"gristmill convert {shlex.quote(place.path)} {out} --group-size 1"
        if split.packed is not None:
            again = "pack the documents again with --group-size 1"
        yield warning(
            f"split {name}: chunks of {size:,} records of {size_text(record)}",
            why=f'shuffle="global" reads {size_text(stored * group)} and decodes '
            f"{size_text(record * group)} for each record of {size_text(record)}: "
            f"{group:,} times as much as at group size 1",
            cure=f'shuffle="block" in loader.global_batches, which uses all records of '
            f"a chunk; or {again}",
        )
    if single:
        yield ok(f"{', '.join(single)}: one record in a chunk; any shuffle suits it")


def _group_size(split: Split) -> int:
    match = _GROUP_SIZE.search(split.writer_options)
    return int(match[1]) if match else 1
