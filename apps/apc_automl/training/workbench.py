"""The training processes: heavy work off the event loop, and back on its feet when one of them is killed."""

import asyncio
import multiprocessing
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from os import _exit
from typing import ParamSpec, TypeVar

from apc_automl.errors import TrainingUnavailable
from apc_automl.model.model_reader import ModelReader, Request
from apc_automl.settings import AutomlSettings
from apc_automl.training import work
from apc_automl.training.material import Blob, Prepared, Study
from apc_bus.telemetry import get_logger

ATTEMPTS = 4

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

log = get_logger("apc_automl")


class Workbench:
    """Runs pure module-level functions in spawned processes.

    A killed process breaks its pool: the pool is replaced and the work done again, which is safe because it
    is a function of its arguments. Processes start with the first job and end with `close` or with this
    process, however that ends. Models of others are read by one more process, which can do nothing else.
    """

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._reader = ModelReader()
        self._reading: ThreadPoolExecutor | None = None
        self._loading: list[Future[None]] = []

    async def run(self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Run `work(*args)` in a training process. Raises what `work` raises.

        Raises:
            TrainingUnavailable: the processes died on every attempt.
        """
        for attempt in range(ATTEMPTS):
            pool = self._open()
            try:
                return await asyncio.wrap_future(pool.submit(work, *args, **kwargs))
            except BrokenProcessPool:
                log.warning("training_process_died", attempt=attempt + 1)
                self._discard(pool)
        raise TrainingUnavailable(
            f"the training process died {ATTEMPTS} times in a row; is there enough memory for this table?"
        )

    async def predict(self, model: Blob, study: Study, rows: Blob, again: bool = False) -> list[bytes]:
        """Return what a model of somebody else says of rows, as `work.rescore` and `work.validate` take it.

        Args:
            again: also what it says after it was serialized and loaded once more.

        Raises:
            ModelFileRefused: the bytes are no model of ours, or cannot be read within bounds.
            TrainingUnavailable: the process that reads models does not start.
        """
        request = Request(model.data, study.schema.data, rows.data, again)
        return await asyncio.wrap_future(self._reading_thread().submit(self._reader.predict, request))

    def start(self) -> None:
        """Let all processes start and load their libraries, in the background; else each does with its first job."""
        pool = self._open()
        self._loading = [pool.submit(work.load) for _ in range(self._processes)]

    async def started(self) -> None:
        """Wait until what `start` began is done: a search time is not spent on loading libraries."""
        await asyncio.to_thread(wait, self._loading)

    def start_reader(self) -> None:
        """Let the process that reads models start in the background; the first `predict` says so if it does not."""
        self._reading_thread().submit(self._reader.start)

    def close(self) -> None:
        """End the processes; idempotent. A later `run` or `predict` starts new ones."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.shutdown(wait=False, cancel_futures=True)
        self._reader.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _reading_thread(self) -> ThreadPoolExecutor:
        if self._reading is None:
            self._reading = ThreadPoolExecutor(1, thread_name_prefix="model-reader")
        return self._reading

    def _open(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._processes, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_process
            )
        return self._pool

    def _discard(self, pool: ProcessPoolExecutor) -> None:
        # Several jobs may see one pool break: only the first of them replaces it.
        if self._pool is pool:
            self._pool = None
        pool.shutdown(wait=False, cancel_futures=True)


def _begin_process() -> None:
    # Ctrl-C at a terminal reaches every process of the group; the parent alone decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    # A pool's process holds both ends of its queue: otherwise it would outlive a killed parent.
    _exit(1)


async def check_table(settings: AutomlSettings, workbench: Workbench) -> None:
    """Read the table in the first process, before others start, so that a refusal does not wait for them.

    Raises:
        TableInvalid: nothing can be learned from it.
    """
    await workbench.run(work.check, str(settings.data), settings.target, settings.problem, settings.options)


async def prepare_table(settings: AutomlSettings, workbench: Workbench) -> Prepared:
    """Return the table of the settings, split and profiled. Raises TableInvalid."""
    return await workbench.run(
        work.prepare,
        str(settings.data),
        settings.target,
        settings.problem,
        settings.seed,
        settings.maximum_rounds,
        settings.maximum_rows,
        settings.options,
    )
