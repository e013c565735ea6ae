"""How long it takes until something serves, from the start of its process."""

import tempfile
import time

from benchmarks.support.figures import Figure, Figures
from benchmarks.support.processes import running
from benchmarks.support.system import System

UP_BAR, WORKER_BAR = 3.0, 1.5
ROUNDS = 3


async def measure_start(system: System, figures: Figures) -> None:
    """Measure the start, best of a few: what disturbs one only makes it slower."""
    workers = []
    for _ in range(ROUNDS):
        async with system.worker("sink") as service:
            workers.append(time.monotonic() - service.began)
    first, again = await _up()
    figures.add(
        Figure("start_up_first", first, "s", UP_BAR, 1.0, is_time=True, note="apc up, embedded, new data folder"),
        Figure("start_up_again", again, "s", UP_BAR, 1.0, is_time=True, note="apc up, embedded, existing log"),
        Figure("start_worker", min(workers), "s", WORKER_BAR, 1.0, is_time=True, note="apc worker over RabbitMQ"),
    )


async def _up() -> tuple[float, float]:
    first: list[float] = []
    again: list[float] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="apc-bench-", ignore_cleanup_errors=True) as folder:
            for times in (first, again):
                environment = {"APC_DATA_DIR": folder}
                async with running("up", "-m", "apc_cli", "up", environment=environment) as service:
                    await service.said("ready after")
                    times.append(time.monotonic() - service.began)
    return min(first), min(again)
