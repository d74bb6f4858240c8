"""The place in the data where post-training goes on.

The trainers of MaxText 0.2.5 that use Tunix, `train_sft` and `train_dpo`, save no state
of the data: resumed, they would train on the first batches again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from gristmill import loader
from gristmill.dataset.base.errors import StateMismatchError
from gristmill.loader.maxtext.failures import raise_failure

_log = logging.getLogger(__name__)

_Load = Callable[[Any, Any], Any]


def train_hook(load: _Load) -> _Load:
    """Returns `load_next_train_batch` of MaxText's hooks, as a run that goes on has it.

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
            _log.warning("post-training goes on with batch %s of the data", f"{step:,}")
            feed.set_state({**feed.get_state(), "step": step})
            return
    _log.warning(
        "post-training goes on with batch %s of the data; those before it are read and "
        "left out",
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
            cure="go on with the data and the batch size of that run, or begin anew "
            "with another run_name",
        ) from e
