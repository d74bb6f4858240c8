"""What a runner's page shows of a transform, such as Dataflow's."""

from __future__ import annotations

from typing import Any

from apache_beam.transforms.display import DisplayDataItem

from gristmill.dataset.base.errors import some_of


def displayed(**options: Any) -> dict[str, Any]:
    """Returns options as Beam's display data; those that are None are left out.

    Of many paths, the first three are shown. Labels are the names of the options.
    """
    return {
        name: DisplayDataItem(
            some_of(value) if isinstance(value, tuple) else value,
            label=name.replace("_", " ").capitalize(),
        )
        for name, value in options.items()
        if value is not None
    }
