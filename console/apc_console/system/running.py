"""How a command runs its coroutine, and how a service learns that it should stop."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

COLLECT_AFTER = 20_000
"""Objects made and not yet freed before the youngest generation is looked through; 700 by default."""


def run_quietly(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a one-shot command: its one clear line is all it says, so events below errors are not written."""
    from apc_console.system.logs import configure

    configure("ERROR")
    return run(coroutine)


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on uvloop, or on asyncio's own loop where there is no uvloop."""
    _collect_rarely()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


def _collect_rarely() -> None:
    """Look for cyclic garbage less often, and never in what the imports have made.

    A packet makes a hundred objects and no cycle: by default a look is taken every few packets, which is a fifth of the
    gate's time (docs/explanation/performance.md).
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)


def end_with_supervisor() -> None:
    """Stop as on SIGTERM once standard input ends: the supervisor has the other end, whatever kills it.

    A service that outlived its supervisor would go on with a shard that the next start wants for itself.
    """

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="supervisor", daemon=True).start()


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set. Raised a second time, SIGINT ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask(number: signal.Signals) -> None:
        stop.set()
        if number is signal.SIGINT:
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask, number)
    return stop
