"""A stand-in for MaxText's trainers: how they take batches, and their errors.

Pre-training and the hooks of post-training are as in MaxText 0.2.5; the loop is that of
Tunix 0.1.7.
"""

from __future__ import annotations

import contextlib
import types
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

    class BaseDataHooks:
        def __init__(self, config: Any, mesh: Any, goodput_recorder: Any) -> None:
            create = module(
                "maxtext.input_pipeline.input_pipeline_interface"
            ).create_data_iterator
            self.config = config
            self.train_data_iterator, self.eval_data_iterator = create(config, mesh)
            self.train_data_loader = DataLoader(
                config, mesh, self.train_data_iterator, goodput_recorder
            )

        def load_next_train_batch(self, train_ctx: Any) -> Any:
            with contextlib.suppress(Exception):
                return self.train_data_loader.load_next_batch()

        def load_next_eval_batch(self, train_ctx: Any) -> Any:
            with contextlib.suppress(Exception):
                return next(self.eval_data_iterator)

    loading.loader_exception_guard = loader_exception_guard
    loading.DataLoader = DataLoader
    module("maxtext.utils.exceptions").StopTraining = StopTraining
    module("maxtext.trainers.post_train.hooks").BaseDataHooks = BaseDataHooks


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


def post_train(
    maxtext: dict[str, Any], config: Any, mesh: Any, *, restored: int = 0
) -> list[Any]:
    """Returns the batches that post-training takes from a restored step on.

    Two batches make a step, as by `gradient_accumulation_steps=2`.
    """
    hooks = maxtext["maxtext.trainers.post_train.hooks"].BaseDataHooks(
        config, mesh, None
    )
    context = types.SimpleNamespace(train_steps=restored, iter_steps=2 * restored)
    if hooks.eval_data_iterator:
        iter(hooks.eval_data_iterator)
        while hooks.load_next_eval_batch(context) is not None:
            pass
    iter(hooks.train_data_iterator)
    batches = []
    while True:
        batch = hooks.load_next_train_batch(context)
        if batch is None or context.train_steps >= config.steps:
            return batches
        batches.append(batch)
        context.iter_steps += 1
        context.train_steps = context.iter_steps // 2
