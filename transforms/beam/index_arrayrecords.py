"""`IndexArrayRecords`: existing files become a dataset, one element a file."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.paths import StrPath, path_texts
from gristmill.transforms.beam.job_metrics import (
    count,
    count_made,
    report_sink,
    report_sources,
)
from gristmill.transforms.beam.pipeline_input import (
    check_begin,
    check_known,
    displayed,
    gather,
    set_types,
)
from gristmill.transforms.indexing.commit_index import commit_index, task_of
from gristmill.transforms.indexing.index_shard import IndexedShard, index_shard
from gristmill.transforms.indexing.plan_index import IndexTask, plan_index

_log = logging.getLogger(__name__)


def _plan(
    files: Sequence[str], name: str | None, split: str | None, overwrite: bool
) -> Iterator[IndexTask]:
    tasks = plan_index(files, name=name, split=split, overwrite=overwrite)
    count({"planned-shards": len(tasks)})
    _log.info(
        *("%s: %d files listed, %d bytes", tasks.dataset, len(tasks)), tasks.file_bytes
    )
    yield from tasks


def _index(task: IndexTask) -> IndexedShard:
    begun = time.monotonic()
    indexed = index_shard(task)
    count_made(indexed.report, seconds=time.monotonic() - begun)
    return indexed


def _commit(
    indexed: Gathered, inputs: tuple[str, ...], *, keep_replaced: bool
) -> Manifest:
    manifest = commit_index(indexed, inputs=inputs, keep_replaced=keep_replaced)
    report_sources(inputs)
    report_sink(task_of(indexed).dataset)
    return manifest


@dataclasses.dataclass(kw_only=True)
class IndexArrayRecords(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[Manifest]]
):
    """Turns existing ArrayRecord files into a dataset, in place.

    Applied to a pipeline; gives a PCollection of one `Manifest`.

    Guarantees: bounded; one linear chain, so that every runner executes it; as many
    files are read at once as the runner has threads; an index depends on its file
    alone, so retries do no harm; the dataset appears only after all files were read,
    and the hashes of their chunks compared. Memory per file in flight: 4 MiB decoded,
    or one chunk if that is larger, and 35 bytes for each record of the file.

    Attributes:
        files: ArrayRecord files or glob patterns, or one, all in one directory.
        name: The dataset's name; by default from the file names.
        split: The split of all files; by default from their names.
        overwrite: Whether to replace splits that are there.
        keep_replaced: Whether what is replaced is kept, to go back to, until
            `gristmill clean`.
    """

    files: StrPath | Sequence[StrPath]
    name: str | None = None
    split: str | None = None
    overwrite: bool = False
    keep_replaced: bool = False

    def __post_init__(self) -> None:
        """Checks the paths.

        Raises:
            InputError: There is none.
        """
        super().__init__()
        set_types(self, gives=Manifest)
        self._files = path_texts(self.files, "file")
        check_known(self)
        if not self._files:
            raise InputError(
                "no files given", cure="give paths or patterns of ArrayRecord files"
            )

    def display_data(self) -> dict[str, Any]:
        """Returns the display data for a runner's page."""
        return displayed(
            input=self._files,
            name=self.name,
            split=self.split,
            overwrite=self.overwrite,
            keep_replaced=self.keep_replaced,
        )

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[Manifest]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(begin, "IndexArrayRecords")
        files = self._files
        committed: beam.PCollection[Manifest] = (
            begin
            | "Files" >> beam.Create([files])
            | "ListFiles" >> beam.FlatMap(_plan, self.name, self.split, self.overwrite)
            | "SpreadFiles" >> beam.Reshuffle()
            | "IndexFiles" >> beam.Map(_index)
            | "GatherReports" >> gather(Gathered)
            | "Commit"
            >> beam.Map(_commit, inputs=files, keep_replaced=self.keep_replaced)
        )
        return committed
