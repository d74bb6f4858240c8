"""`IndexArrayRecords`: existing files become a dataset, one element per file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import apache_beam as beam

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.paths import StrPath, path_texts
from gristmill.transforms.beam.result_coders import ResultCoder
from gristmill.transforms.beam.run_job import JobTransform
from gristmill.transforms.indexing.index_job import IndexJob

beam.coders.registry.register_coder(Manifest, ResultCoder)


@dataclasses.dataclass(kw_only=True)
class IndexArrayRecords(JobTransform[Manifest]):
    """Turns existing ArrayRecord files into a dataset, in place.

    Apply it to a pipeline; it returns a PCollection of one `Manifest`.

    Guarantees: bounded; one linear chain, which every runner can execute; each thread
    of the runner reads a file at a time; an index depends only on its file, so retries
    do no harm; the dataset appears only after all files were read and the hashes of
    their chunks compared. Memory per file in flight: 4 MiB decoded, or one chunk if
    that is larger, and 35 bytes per record.

    Attributes:
        files: One or several ArrayRecord files or glob patterns, all in one directory.
        name: The dataset's name; by default from the file names.
        split: The split of all files; by default from their names.
        overwrite: Whether to replace existing splits.
        keep_replaced: Whether to keep what is replaced, for a rollback, until
            `gristmill clean`.
    """

    files: StrPath | Sequence[StrPath]
    name: str | None = None
    split: str | None = None
    overwrite: bool = False
    keep_replaced: bool = False

    _gives = Manifest

    def _make_job(self) -> IndexJob:
        files = path_texts(self.files, "file")
        if not files:
            raise InputError(
                "no files given", cure="give paths or patterns of ArrayRecord files"
            )
        return IndexJob(
            files=files,
            name=self.name,
            split=self.split,
            overwrite=self.overwrite,
            keep_replaced=self.keep_replaced,
        )
