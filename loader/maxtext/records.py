"""Single records for MaxText's own preprocessing."""

from __future__ import annotations

import dataclasses
from typing import Any

import grain

from gristmill import loader
from gristmill.loader.maxtext.options import Options
from gristmill.loader.maxtext.restore import ElasticRecords, HasBatches
from gristmill.loader.maxtext.settings import Side
from gristmill.loader.maxtext.sources import Sources


@dataclasses.dataclass(frozen=True)
class RecordDatasets:
    """Stands in for `get_datasets`: what MaxText's preprocessing starts with.

    It pickles: with colocated python, MaxText calls it on another host.

    Attributes:
        side: What MaxText's settings ask for.
        sources: The data.
        options: How it is read.
        rows: Records of a host that make one step of the order.
        made: The records that were asked for in this process, those of single hosts.
        elastic: The batches whose records MaxText deals to hosts.
    """

    side: Side
    sources: Sources
    options: Options
    rows: int
    made: list[HasBatches] = dataclasses.field(default_factory=list, compare=False)
    elastic: list[loader.GlobalBatches] = dataclasses.field(
        default_factory=list, compare=False
    )

    def __call__(
        self,
        *names: Any,
        dataloading_host_index: int,
        dataloading_host_count: int,
        elastic: bool = False,
        **known: Any,
    ) -> grain.IterDataset | grain.MapDataset:
        """Returns the records of a host; with `elastic` those of all hosts.

        Args:
            names: Files and their type, which `sources` are.
            dataloading_host_index: Number of the host.
            dataloading_host_count: How many hosts read.
            elastic: Whether MaxText deals the records to hosts itself.
            known: What `side` has too.
        """
        host, hosts = dataloading_host_index, dataloading_host_count
        rows = self.rows * hosts
        batches = self.sources.batches(self.side, self.options, rows=rows)
        if elastic:
            self.elastic.append(batches)
            return batches.map_dataset()
        records = batches.records(
            host=(host, hosts),
            prefetch=self.side.batches_ahead(self.rows),
        )
        self.made.append(records)
        return records

    def elastic_iterator(self, *args: Any, **named: Any) -> Any:
        """Stands in for Grain's `ElasticIterator`, with its arguments."""
        return ElasticRecords(self.elastic[-1], *args, **named)
