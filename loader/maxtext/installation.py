"""Replaces the functions of this process that make MaxText's data iterators."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.loader.maxtext.iterators import make_iterator
from gristmill.loader.maxtext.restore import OrderedIterator, explained_restore
from gristmill.loader.maxtext.settings import Options, SftEnds, Shuffled, check

TRIED = "0.2.5"
"""The version of MaxText that this was last tried with."""

_INTERFACE = "maxtext.input_pipeline.input_pipeline_interface"
_PROCESSING = "maxtext.input_pipeline.grain_data_processing"
_CHECKPOINTS = "maxtext.common.grain_utility"
_LOADER = "maxtext.common.data_loader"
_TUNIX_HOOKS = "maxtext.trainers.post_train.hooks"

_log = logging.getLogger(__name__)

_originals: dict[tuple[str, str], Any] = {}
_made: list[str] = []  # The sides that MaxText asked for.


def install(
    *,
    shuffle: Shuffled = "global",
    cache: str | None = None,
    cache_bytes: int | None = None,
    sft_ends: SftEnds = "template",
) -> None:
    """Makes MaxText's trainers of this process read their data by gristmill.

    Call it before `main` of a trainer; again, to choose other options. MaxText's own
    settings, which `docs/train/maxtext.md` lists, say what is read. `main` raises
    errors of the data instead of returning.

    Args:
        shuffle: "global" or "block": which shuffle `enable_data_shuffling` asks for.
        cache: Local directory for copies of what is in object storage.
        cache_bytes: Bytes of all copies of shards in it; none by default.
        sft_ends: What puts tokens around the texts of `use_sft`, where MaxText makes
            their tokens: "template" for the chat template alone; "settings" for
            `add_bos` and `add_eos` too, which put them around each part of a
            conversation.

    Raises:
        InputError: MaxText is missing, is a version without the names that are replaced
            here, or there is no such option.
    """
    install_options(Options(shuffle, cache, cache_bytes, sft_ends))


def install_options(options: Options) -> None:
    """Does the work of `install`."""
    _made.clear()
    for name in ("train", "eval"):
        function = f"make_grain_{name}_iterator"
        own = _original(_PROCESSING, function)
        _replace(_INTERFACE, function, functools.partial(_make, name, options, own))
    create = _original(_INTERFACE, "create_data_iterator")
    _replace(_INTERFACE, "create_data_iterator", _checking(create))
    # One state for all hosts, in one file that any number of hosts can restore.
    elastic = _original(_CHECKPOINTS, "ElasticIterator")
    _replace(_CHECKPOINTS, "ElasticIterator", (elastic, loader.Feed, OrderedIterator))
    restore = _original(_CHECKPOINTS, "for_restore")
    _replace(_CHECKPOINTS, "for_restore", explained_restore(restore))
    guard = _original(_LOADER, "loader_exception_guard")
    _replace(_LOADER, "loader_exception_guard", raising_guard(guard))


def raising_guard(guard: Callable[[Any], AbstractContextManager[Any]]) -> Any:
    """Returns MaxText's `loader_exception_guard` for the end of the data alone.

    MaxText 0.2.5 takes every error of the data for their end, and exits with success
    and without a checkpoint. Here errors are raised.
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


def check_fed(module: str) -> None:
    """Warns if MaxText made no data iterator since `install`."""
    if not _made:
        _log.warning(
            "%s asked for no data iterator of MaxText, so it read nothing by gristmill",
            module,
        )


def _make(name: str, options: Options, own: Callable[..., Any], *args: Any) -> Any:
    _made.append(name)
    if _TUNIX_HOOKS in sys.modules:
        raise InputError(
            "the trainers of MaxText that use Tunix save no state of the data, and "
            "drop its errors",
            expected="a trainer of MaxText's own",
            got=f"{_TUNIX_HOOKS} is imported",
            cure="train by maxtext.trainers.post_train.sft.train_sft_native, or by "
            "Tunix without MaxText",
        )
    return make_iterator(name, options, own, *args)


def _checking(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_data_iterator(config: Any, *args: Any, **named: Any) -> Any:
        check(config, "records")  # What no way of reading can honour.
        return create(config, *args, **named)

    return create_data_iterator


def _original(module: str, name: str) -> Any:
    """Returns the object of MaxText under a name, also after it was replaced."""
    try:
        found = getattr(importlib.import_module(module), name)
    except (AttributeError, ModuleNotFoundError) as e:
        missing = (e.name or "") if isinstance(e, ModuleNotFoundError) else "maxtext"
        if not missing.startswith("maxtext"):
            raise
        raise _unknown(f"{module}.{name}") from e
    return _originals.setdefault((module, name), found)


def _replace(module: str, name: str, value: Any) -> None:
    _original(module, name)
    setattr(sys.modules[module], name, value)


def _unknown(name: str) -> InputError:
    try:
        version = f"MaxText {importlib.metadata.version('maxtext')}"
    except importlib.metadata.PackageNotFoundError:
        version = "no MaxText"
    return InputError(
        "there is no MaxText here whose data iterators gristmill can replace",
        expected=f"{name}, which MaxText {TRIED} has",
        got=version,
        cure=f"pip install 'maxtext[tpu]=={TRIED}', which this was tried with",
    )
