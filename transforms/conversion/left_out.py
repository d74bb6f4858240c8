"""Duplicates that a certificate lists: left out of the records of a shard."""

from __future__ import annotations

import numpy as np

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.duplicates.certificate import Certificate, open_certificate
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.transforms.jobs.prepared_job import PreparedJob


class LeftOut:
    """Leaves out duplicates, and counts them.

    Args:
        certificate: Lists them.
    """

    def __init__(self, certificate: Certificate):
        self._certificate = certificate
        self.digest = RecordsDigest()

    @classmethod
    def of(cls, prepared: PreparedJob) -> LeftOut | None:
        """Returns the filter of a job, None if it leaves out nothing."""
        path = prepared.certificate
        return None if path is None else cls(open_certificate(path))

    def kept(self, file: int, batch: RecordBatch) -> RecordBatch:
        """Returns the records of a batch that are kept, given the number of its file.

        Raises InvalidDatasetError if the certificate is damaged.
        """
        if not batch.records:
            return batch
        first, last = batch.places[0], batch.places[-1]
        lost = self._certificate.between(file, first, last)["place"]
        if not len(lost):
            return batch
        is_lost = np.isin(np.array(batch.places, np.int64), lost)
        rows = np.flatnonzero(is_lost).tolist()
        lengths = np.array([len(batch.records[row]) for row in rows], np.int64)
        crc32cs = np.array([batch.crc32cs[row] for row in rows], np.uint32)
        self.digest += RecordsDigest.of(crc32cs, lengths)
        kept = np.flatnonzero(~is_lost).tolist()
        return RecordBatch(
            [batch.places[row] for row in kept],
            [batch.records[row] for row in kept],
            [batch.crc32cs[row] for row in kept],
            batch.null_rows,
        )
