"""The deletion of what datasets do not name any more, by all workers of a job.

A commit is one write. What it has replaced may be millions of files: they are listed
after it, and deleted in parallel.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator

import apache_beam as beam

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.commit.garbage import SplitFiles
from gristmill.dataset.metadata.layout import TABLE
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import delete_all

_log = logging.getLogger(__name__)

_BATCH_FILES = 1_000

_Batch = tuple[str, list[FileInfo]]


class DeleteReplaced(
    beam.PTransform[beam.PCollection[str], beam.PCollection[tuple[str, int]]]
):
    """Deletes what was replaced; gives each dataset with the number of batches.

    Applied to the directories of datasets. What cannot be deleted is logged, and found
    by the next command: the datasets are committed.
    """

    def expand(
        self, datasets: beam.PCollection[str]
    ) -> beam.PCollection[tuple[str, int]]:
        """Builds the chain."""
        deleted: beam.PCollection[tuple[str, int]] = (
            datasets
            | "ListReplaced" >> beam.FlatMap(_batches).with_output_types(_Batch)
            | "SpreadReplaced" >> beam.Reshuffle()
            | "DeleteFiles" >> beam.Map(_delete).with_output_types(tuple[str, int])
            | "AllDeleted" >> beam.CombinePerKey(sum)
            | "DeleteTables" >> beam.Map(_end).with_output_types(tuple[str, int])
        )
        return deleted


def _batches(dataset: str) -> Iterator[_Batch]:
    """Yields the files of shards to delete, and an empty batch."""
    with _logged(dataset):
        manifest = open_manifest(dataset)
        for name in manifest.splits:
            # Tables go last: as long as they are there, the rest is found.
            steps = SplitFiles(dataset, manifest, name).garbage()
            found = (
                info
                for info in itertools.chain.from_iterable(steps)
                if not info.path.endswith(TABLE.suffix)
            )
            while files := list(itertools.islice(found, _BATCH_FILES)):
                yield dataset, files
    yield dataset, []


def _delete(batch: _Batch) -> tuple[str, int]:
    dataset, files = batch
    with _logged(dataset):
        delete_all(files)
    return dataset, 1


def _end(deleted: tuple[str, int]) -> tuple[str, int]:
    dataset, _ = deleted
    with _logged(dataset):
        manifest = open_manifest(dataset)
        for name in manifest.splits:
            SplitFiles(dataset, manifest, name).delete_garbage()
    return deleted


@contextlib.contextmanager
def _logged(dataset: str) -> Iterator[None]:
    try:
        yield
    except GristmillError as error:
        _log.warning("%s: what was replaced is not deleted: %s", dataset, error)
