"""Post-training's place in the data, and the errors that MaxText drops.

The trainers of MaxText 0.2.5 that use Tunix, `train_sft` and `train_dpo`, save no state
of the data: resumed, they would train on the first batches again. All its
trainers take errors of the data for their end: without a checkpoint, and with the exit
code of success.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from gristmill import loader
from gristmill.dataset.base.errors import StateMismatchError


def raising_guard(guard: Callable[[Any], AbstractContextManager[Any]]) -> Any:
    """Returns MaxText's `loader_exception_guard` for the end of the data alone.

    Errors propagate unchanged, also those that elastic training takes.
    """

    @contextlib.contextmanager
    @functools.wraps(guard)
    def loader_exception_guard(config: Any) -> Iterator[None]:
        try:
            yield
        except StopIteration:
            with guard(config):
                raise

    return loader_exception_guard


def keeping_failures(give: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns `__next__` of MaxText's data iterator, which keeps the error it raises.

    Post-training drops it.
    """

    @functools.wraps(give)
    def next_batch(iterator: Any) -> Any:
        try:
            return give(iterator)
        except StopIteration:
            raise
        except Exception as e:
            iterator.gristmill_failure = e
            raise

    return next_batch


def raise_failure(iterators: Any) -> None:
    """Raises the error that one of MaxText's data iterators, or a list, has kept."""
    for iterator in iterators if isinstance(iterators, list) else [iterators]:
        failure = getattr(iterator, "gristmill_failure", None)
        if failure is not None:
            raise failure


_log = logging.getLogger(__name__)

_Load = Callable[[Any, Any], Any]


def train_hook(load: _Load) -> _Load:
    """Returns `load_next_train_batch` of MaxText's hooks, for a resumed run.

    Before the first batch it goes to the step that the trainer has restored. An error
    of the data, for which MaxText's own returns no batch, is raised.
    """

    @functools.wraps(load)
    def load_next_train_batch(hooks: Any, train_ctx: Any) -> Any:
        if not getattr(hooks, "gristmill_began", False):
            hooks.gristmill_began = True
            _go_to(hooks, train_ctx.iter_steps)
        batch = load(hooks, train_ctx)
        # After its last step it asks for a batch that it does not train on.
        if batch is None and train_ctx.train_steps < hooks.config.steps:
            raise_failure(hooks.train_data_iterator)
        return batch

    return load_next_train_batch


def eval_hook(load: _Load) -> _Load:
    """Returns `load_next_eval_batch` of MaxText's hooks, which raises errors."""

    @functools.wraps(load)
    def load_next_eval_batch(hooks: Any, train_ctx: Any) -> Any:
        batch = load(hooks, train_ctx)
        if batch is None:
            raise_failure(hooks.eval_data_iterator)
        return batch

    return load_next_eval_batch


def _go_to(hooks: Any, step: int) -> None:
    """Has the next batch be that of a step.

    A feed of packed rows begins there. MaxText's preprocessing decides how many records
    a step takes, so those before it are read and prepared again.

    Raises:
        StateMismatchError: The data end before it.
    """
    from maxtext.utils.exceptions import StopTraining

    if not step:
        return
    feed = getattr(hooks.train_data_iterator, "local_iterator", None)
    if isinstance(feed, loader.Feed):
        steps = feed.batches.steps
        if steps is None or step <= steps:
            _log.warning(
                "post-training continues with batch %s of the data", f"{step:,}"
            )
            feed.set_state({**feed.get_state(), "step": step})
            return
    _log.warning(
        "post-training continues with batch %s of the data; those before it are read "
        "and left out",
        f"{step:,}",
    )
    given = 0
    try:
        while given < step:
            hooks.train_data_loader.load_next_batch_pre_sharding()
            given += 1
    except StopTraining as e:
        raise StateMismatchError(
            "the data end before the step of the checkpoint",
            expected=f"{step:,} batches that it was trained on",
            got=f"{given:,} batches",
            cure="continue with the data and the batch size of that run, or begin anew "
            "with another run_name",
        ) from e
