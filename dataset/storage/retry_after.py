"""Retries that obey `Retry-After`, within their deadline."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from google.api_core.retry import Retry, exponential_sleep_generator
from google.api_core.retry.retry_unary import retry_target

from gristmill.dataset.storage.retry_after_header import retry_after_seconds

_LAST_TRY_SECONDS = 0.05  # Time kept for the last attempt.


class PatientRetry(Retry):
    """Retries of Google's libraries that obey `Retry-After`.

    If a server asks for more time than is left, there is one more attempt, at the
    deadline.
    """

    def __call__(
        self,
        func: Callable[..., Any],
        on_error: Callable[[Exception], Any] | None = None,
    ) -> Callable[..., Any]:
        """Wraps a function with the retries."""
        del on_error

        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            asked_seconds = 0.0

            def hear(error: Exception) -> None:
                nonlocal asked_seconds
                response = getattr(error, "response", None)
                headers = getattr(response, "headers", None) or {}
                asked_seconds = retry_after_seconds(headers)

            deadline = time.monotonic() + (self._timeout or 0.0)

            def pauses() -> Iterator[float]:
                usual = exponential_sleep_generator(
                    self._initial, self._maximum, self._multiplier
                )
                for pause in usual:
                    left = deadline - time.monotonic() - _LAST_TRY_SECONDS
                    yield max(pause, min(asked_seconds, left))

            return retry_target(
                functools.partial(func, *args, **kwargs),
                self._predicate,
                pauses(),
                timeout=self._timeout,
                on_error=hear,
            )

        return call
