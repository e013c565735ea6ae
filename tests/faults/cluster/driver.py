"""The client of the cluster run as its own process, until SIGTERM: `python -m tests.faults.cluster.driver FOLDER RATE`.

It starts sessions at a steady rate, as long as no more than AT_ONCE wait. It repeats each start under its key until it
is confirmed, and waits for each result. What it is told it writes down at once, one JSON line each: the account of the
run compares that with the log.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import orjson
from tests.faults.cluster.crew import Done, Job, team

import apc_client
from apc_cli.system.running import run
from apc_client import ClientSession, SessionHalted

JOURNAL = "driver.jsonl"
PAUSE_SECONDS = 0.5
AT_ONCE = 60
"""Callers that wait at a time: each looks into the log many times a second, and the machine has other work."""
GIVE_UP_SECONDS = 240.0
"""A key whose start was not confirmed for so long was never started."""
RESULT_SECONDS = 60.0


class Driver:
    """Asks for one session after the other."""

    def __init__(self, client: apc_client.Client, journal: TextIO) -> None:
        self._client = client
        self._journal = journal
        self._places = asyncio.Semaphore(AT_ONCE)

    async def drive(self, rate: float, stop: asyncio.Event) -> None:
        """Begin `rate` sessions per second until told to stop; return when each has ended."""
        loop, began, number = asyncio.get_running_loop(), asyncio.get_running_loop().time(), 0
        async with asyncio.TaskGroup() as tasks:
            while not stop.is_set():
                await self._places.acquire()
                tasks.create_task(self._follow(number)).add_done_callback(lambda _: self._places.release())
                number += 1
                try:
                    async with asyncio.timeout_at(max(began + number / rate, loop.time())):
                        await stop.wait()
                except TimeoutError:
                    continue

    async def _follow(self, number: int) -> None:
        """Follow one session from its start to its end."""
        self._note("asked", number)
        session = await self._start(number)
        if session is None:
            return
        self._note("started", number, session_id=session.session_id)
        while True:
            try:
                done = await session.result(Done, timeout=RESULT_SECONDS)
            except SessionHalted as error:
                self._note("halted", number, reason=error.reason)
                return
            except Exception as error:
                self._failed(number, error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._note("ended", number, is_right=done.square == number**2, steps=done.steps)
            return

    async def _start(self, number: int) -> ClientSession | None:
        """Repeat the start under its key until it is confirmed; None when that took too long."""
        ends = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < ends:
            try:
                return await self._client.start(team, Job(n=number), key=f"job-{number}")
            except Exception as error:
                self._failed(number, error)
                await asyncio.sleep(PAUSE_SECONDS)
        self._note("given_up", number)
        return None

    def _failed(self, number: int, error: Exception) -> None:
        self._note("failed", number, error=f"{type(error).__name__}: {error}"[:200])

    def _note(self, what: str, number: int, **fields: Any) -> None:
        line = orjson.dumps({"what": what, "number": number, "at": time.time()} | fields)
        self._journal.write(line.decode() + "\n")
        self._journal.flush()


async def main(folder: Path, rate: float) -> None:
    """Drive until SIGTERM, and then until every session has ended."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with (folder / JOURNAL).open("a") as journal:
        async with apc_client.connect() as client:
            await Driver(client, journal).drive(rate, stop)


if __name__ == "__main__":
    run(main(Path(sys.argv[1]), float(sys.argv[2])))
