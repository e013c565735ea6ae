"""Bars waits where a handler run could not be repeated from its records."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_barred: Final[ContextVar[str | None]] = ContextVar("apc_waits_barred", default=None)


@contextmanager
def no_waits(remedy: str) -> Iterator[None]:
    """Refuse every wait within, in this task and those that it starts; `remedy` says what to do instead."""
    token = _barred.set(remedy)
    try:
        yield
    finally:
        _barred.reset(token)


def barred() -> str | None:
    """Return the remedy where waits are barred; None where a handler may wait."""
    return _barred.get()
