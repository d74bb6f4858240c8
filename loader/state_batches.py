"""The global batches that the state of a feed is of, made from the state alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.dataset.errors import GristmillError, InputError
from gristmill.loader.batches import Batches
from gristmill.loader.dataset import Dataset
from gristmill.loader.feed.state import no_state, step_of
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import Schedule
from gristmill.loader.order.shuffle import shuffle_from_state


def batches_of_state(
    datasets: Dataset | Mapping[str, Dataset], state: Mapping[str, Any]
) -> Batches:
    """Returns the global batches that a feed gave when its state was taken.

    Args:
        datasets: The dataset, or those of a mixture by their names.
        state: What `get_state` of the feed returned.

    Raises:
        InputError: It is no state, or of a mixture of other names.
        StateMismatchError: The datasets do not hold the records that the state is of.
        FormatVersionError: Another version wrote the state.
    """
    named = datasets if isinstance(datasets, Mapping) else {"": datasets}
    try:
        entries = {str(entry["name"]): entry for entry in state["datasets"]}
        mixture = state["mixture"]
        if entries.keys() != named.keys() or (mixture is None) != ("" in named):
            raise InputError(
                "the state is of other datasets",
                expected=", ".join(entries) if mixture else "one without a name",
                got=", ".join(named) or "none",
                cure="give those of the run that wrote the state, by the same names",
            )
        schedule = Schedule(
            orders=tuple(
                DatasetOrder(
                    num_records=len(named[name]),
                    seed=entry["seed"],
                    shuffle=shuffle_from_state(entry["shuffle"]),
                    epochs=entry["epochs"],
                    name=name,
                )
                for name, entry in entries.items()
            ),
            mixture=None if mixture is None else Mixture.from_state(mixture),
            batch_size=state["batch_size"],
            drop_remainder=state["drop_remainder"],
        )
    except GristmillError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise no_state(state) from e
    batches = Batches(
        datasets=tuple(named[name] for name in entries), schedule=schedule
    )
    step_of(state, batches)  # It compares the datasets.
    return batches
