"""Single records for MaxText's own preprocessing, in either order."""

from __future__ import annotations

import dataclasses
from typing import Any

import grain
import grain.experimental

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.loader.maxtext.options import PREFIX, Options
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
        made: The records in gristmill's order that were asked for in this process,
            those of single hosts.
        elastic: The batches of gristmill's order whose records MaxText deals to hosts.
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
        if self.options.order == "grain":
            return self._in_grains_order(slice(host, None, hosts), elastic=elastic)
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
        if self.options.order == "grain":
            return grain.experimental.ElasticIterator(*args, **named)
        return ElasticRecords(self.elastic[-1], *args, **named)

    def _in_grains_order(self, share: slice, *, elastic: bool) -> Any:
        """Returns the result of MaxText's `get_datasets`, read by our source.

        Elements, order and states are the same, so that a run of MaxText's own
        pipeline continues.

        Raises:
            InputError: A mixture is to be elastic, which MaxText cannot do.
        """
        if elastic and self.sources.names:
            raise InputError(
                "grain_use_elastic_iterator of MaxText cannot be honoured for a "
                "mixture in the order of its own pipeline",
                got=f"{len(self.sources.names)} datasets",
                cure="leave it out, or begin a run in gristmill's order, without "
                f"{PREFIX}order=grain",
            )
        found = []
        ahead = grain.ReadOptions(
            num_threads=self.side.threads, prefetch_buffer_size=self.side.ahead
        )
        for part in self.sources.parts:
            dataset = grain.MapDataset.source(part.dataset)
            if self.side.shuffled:
                dataset = dataset.shuffle(seed=self.side.seed)
            dataset = dataset.repeat(self.side.epochs)
            if elastic:
                return dataset
            found.append(dataset[share].to_iter_dataset(ahead))
        if not self.sources.names:
            return found[0]
        weights = [float(part.weight) for part in self.sources.parts]
        shares = [weight / sum(weights) for weight in weights]
        if not self.sources.given_names:
            # As MaxText rounds the weights of a mixture that is a text.
            return grain.IterDataset.mix(found, [round(share, 4) for share in shares])
        names = self.sources.names
        named = dict(zip(names, found, strict=True))
        return grain.IterDataset.mix(named, dict(zip(names, shares, strict=True)))
