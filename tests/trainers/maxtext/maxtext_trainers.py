"""A stand-in for MaxText's pre-training: how it takes batches, and its errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class StopTraining(Exception):  # noqa: N818 - MaxText's name.
    """What MaxText makes of every error of the data."""


def add_trainers(module: Callable[[str], Any]) -> None:
    """Adds the modules of the trainers to the stand-in.

    Args:
        module: Returns the module of a name, a new one if there is none.
    """
    loading = module("maxtext.common.data_loader")

    @contextlib.contextmanager
    def loader_exception_guard(config: Any) -> Iterator[None]:
        try:
            yield
        except Exception as e:
            raise StopTraining(f"{type(e)} exception: ({e})") from None

    class DataLoader:
        def __init__(
            self, config: Any, mesh: Any, data_iterator: Any, goodput_recorder: Any
        ) -> None:
            self.config, self.data_iterator = config, data_iterator

        def load_next_batch_pre_sharding(self) -> Any:
            with loading.loader_exception_guard(self.config):
                return next(self.data_iterator)

        def load_next_batch(self, *args: Any, **kwargs: Any) -> Any:
            return self.load_next_batch_pre_sharding()

    loading.loader_exception_guard = loader_exception_guard
    loading.DataLoader = DataLoader
    module("maxtext.utils.exceptions").StopTraining = StopTraining


def pre_train(maxtext: dict[str, Any], config: Any, mesh: Any) -> list[Any]:
    """Returns the batches that pre-training takes, to its end."""
    interface = maxtext["maxtext.input_pipeline.input_pipeline_interface"]
    iterator, _ = interface.create_data_iterator(config, mesh)
    loader = maxtext["maxtext.common.data_loader"].DataLoader(
        config, mesh, iterator, None
    )
    batches = []
    with contextlib.suppress(StopTraining):
        while len(batches) < config.steps:
            batches.append(loader.load_next_batch())
    return batches
