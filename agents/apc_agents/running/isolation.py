"""What keeps the agents of a host apart: a watch on the event loop that they share, threads, and child processes.

A thread or a child process handles one delivery after the other, as a worker of its agent would, over its own
connections, and says how each ended. It ends with its host.
"""

import asyncio
import concurrent.futures
import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Literal, NamedTuple, Protocol

import msgspec

from apc_agents.agent import Agent, Runs
from apc_agents.errors import ProcessEnded
from apc_agents.outbox import ReceiptOutbox
from apc_agents.running.delivery import Orchestrators
from apc_agents.running.service import open_artifact_store, open_stores
from apc_agents.running.worker import Worker, handling
from apc_agents.team import load_agent
from apc_bus.concurrency import end_future, reason_of, running
from apc_bus.errors import DeadLetter, GiveBack
from apc_bus.last_resort import Risk
from apc_bus.port import Delivery, Message
from apc_bus.settings import BusSettings, ConsoleSettings, WorkerSettings
from apc_bus.telemetry import configure_logs, get_logger
from apc_contracts.errors import ApcError

TOLD_AFTER_SECONDS = 0.5
"""A loop that has not turned for so long is told of."""
ENDED_AFTER_SECONDS = 10.0
"""After so long the process ends: its broker and the packets of all other agents wait for this one handler."""
LOOK_SECONDS = 0.25
LONGEST_STEP_SECONDS = 1.0
"""The longest part of a blockage that counts: a process that was stopped from outside has blocked nothing."""
STACK_FRAMES = 12
DRAIN_SECONDS = 20.0
"""How long a thread or a child process may take to end once nothing is left for it."""
CONNECTIONS = 2
"""To the database, of each of them."""
_LENGTH_BYTES = 4

_log = get_logger("apc_agents")


# Tells when the event loop is blocked, by whom and where. It is a thread: nothing in the loop could.


class LoopWatchdog:
    """Watches the event loop in which it is made.

    Args:
        host: whose loop it is, for the log.
        limit: seconds after which the process is killed, None = never.
    """

    def __init__(self, host: str, limit: float | None = ENDED_AFTER_SECONDS) -> None:
        self._host = host
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._ends = threading.Event()
        self.blocked: str | None = None
        """The agent that blocks the loop now, "" if it is not known; None = it turns."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the loop meanwhile."""
        thread = threading.Thread(target=self._watch, name="loop watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()

    def _watch(self) -> None:
        while not self._ends.wait(LOOK_SECONDS):
            turned = threading.Event()
            try:
                self._loop.call_soon_threadsafe(turned.set)
            except RuntimeError:  # the loop is closed
                return
            if not turned.wait(TOLD_AFTER_SECONDS) and not self._ends.is_set():
                self._tell_until(turned)

    def _tell_until(self, turned: threading.Event) -> None:
        agent_id, packet_id = self._culprit()
        self.blocked = agent_id or ""
        stack = "".join(traceback.format_stack(sys._current_frames()[self._thread_id])[-STACK_FRAMES:])
        about = {"host": self._host, "agent_id": agent_id, "packet_id": packet_id}
        _log.error("loop_blocked", after_s=TOLD_AFTER_SECONDS, stack=stack, **about)
        began = looked_at = monotonic()
        blocked = TOLD_AFTER_SECONDS
        while not turned.wait(LOOK_SECONDS):
            now = monotonic()
            blocked += min(now - looked_at, LONGEST_STEP_SECONDS)
            looked_at = now
            if self._limit is not None and blocked > self._limit:
                _log.critical("loop_blocked_too_long", after_s=self._limit, **about)
                os.kill(os.getpid(), signal.SIGKILL)
        self.blocked = None
        _log.warning("loop_free_again", after_s=round(monotonic() - began + TOLD_AFTER_SECONDS, 1), **about)

    def _culprit(self) -> tuple[str | None, str | None]:
        """Return whose handler the loop is in, and for which packet; None if the loop is not in a handler itself."""
        task = asyncio.current_task(self._loop)
        found = None if task is None else handling.get(task)
        if found is None and len(in_hand := list(handling.values())) == 1:
            found = in_hand[0]
        return (None, None) if found is None else (found[0], str(found[1]))


# Deliveries that are handled apart from the loop of the host.


class Child(Protocol):
    """A thread or a process that handles deliveries of one agent, one after the other; started when it is needed."""

    async def handle(self, delivery: Delivery, *, is_urgent: bool) -> Exception | None:
        """Handle a delivery; return what `Take` says of its end: None = acknowledge it.

        Raises:
            ProcessEnded: the process has ended without saying how the delivery ended.
        """
        ...

    async def close(self) -> None:
        """Let it drain and end; idempotent."""
        ...


class Children:
    """Children of one kind, of which few work at a time, and as many wait for the next packet of their agent.

    Args:
        make: a new child for an agent.
        most: how many work at a time.
    """

    def __init__(self, make: Callable[[str], Child], most: int) -> None:
        self._make, self._most = make, most
        self._at_work = asyncio.Semaphore(most)
        self._idle: dict[str, Child] = {}
        """By agent_id; the one that was at work last comes last."""

    async def handle(self, agent_id: str, delivery: Delivery, *, is_urgent: bool, stays: bool) -> Exception | None:
        """Handle a delivery in a child, which may stay for the agent's next one. Raises as `Child.handle`."""
        async with self._at_work:
            child = self._idle.pop(agent_id, None) or self._make(agent_id)
            error = await child.handle(delivery, is_urgent=is_urgent)
        if not stays or agent_id in self._idle or isinstance(error, GiveBack):  # the next one may fare better
            await child.close()
            return error
        self._idle[agent_id] = child
        if len(self._idle) > self._most:
            await self._idle.pop(next(iter(self._idle))).close()
        return error

    async def close(self) -> None:
        """Let those that wait end."""
        await asyncio.gather(*(child.close() for child in self._idle.values()))


# In a thread: a handler that blocks holds up its own event loop alone.


class _Started(NamedTuple):
    """The worker of a thread."""

    loop: asyncio.AbstractEventLoop
    worker: Worker
    ended: asyncio.Future[None]
    """Fails when the worker cannot go on."""
    stop: asyncio.Event


class ChildThread:
    """A thread with its own event loop, worker and connections."""

    def __init__(self, agent: Agent, settings: WorkerSettings, bus_settings: BusSettings) -> None:
        self._agent, self._settings, self._bus_settings = agent, settings, bus_settings
        self._started: concurrent.futures.Future[_Started] | None = None
        self._thread: threading.Thread | None = None

    async def handle(self, delivery: Delivery, *, is_urgent: bool) -> Exception | None:
        """Handle a delivery; return what `Take` says of its end: None = acknowledge it."""
        try:
            started = await asyncio.wrap_future(self._started or self._start())
        except BaseException as failure:
            self._started = None
            if not isinstance(failure, Exception):  # nobody waits any more
                raise
            return GiveBack(reason_of(failure))  # broker or database are away, or on_start has failed
        handled = asyncio.run_coroutine_threadsafe(_handled(started, delivery, is_urgent=is_urgent), started.loop)
        try:
            return await asyncio.wrap_future(handled)
        except BaseException:  # nobody waits any more
            started.loop.call_soon_threadsafe(started.stop.set)
            raise

    async def close(self) -> None:
        """Let the thread drain and end; one that is blocked ends with the process. Idempotent."""
        if self._started is not None and self._thread is not None:
            with suppress(Exception):  # it has not started
                started = await asyncio.wrap_future(self._started)
                started.loop.call_soon_threadsafe(started.stop.set)
            await asyncio.to_thread(self._thread.join, DRAIN_SECONDS)

    def _start(self) -> "concurrent.futures.Future[_Started]":
        self._started = concurrent.futures.Future()
        name = f"agent {self._agent.agent_id}"
        self._thread = threading.Thread(target=self._run, args=(self._started,), name=name, daemon=True)
        self._thread.start()
        return self._started

    def _run(self, told: "concurrent.futures.Future[_Started]") -> None:
        try:
            asyncio.run(self._serve(told))
        except BaseException as failure:
            if not told.done():
                if told.set_running_or_notify_cancel():
                    told.set_exception(failure)
            elif not told.cancelled():
                _log.exception("thread_failed", agent_id=self._agent.agent_id)

    async def _serve(self, told: "concurrent.futures.Future[_Started]") -> None:
        stop = asyncio.Event()
        async with _worker_of(self._agent, self._settings, self._bus_settings) as (worker, ended):
            if told.set_running_or_notify_cancel():  # else nobody waits any more
                told.set_result(_Started(asyncio.get_running_loop(), worker, ended, stop))
                await stop.wait()


# In a process: nothing that it does ends its host.


class _Order(NamedTuple):
    """What a child process is to handle: it comes on its standard input, behind its length."""

    place: str
    is_urgent: bool
    routing_key: str
    message: Message

    @property
    def delivery(self) -> Delivery:
        """What the host has taken from the broker."""
        return Delivery(self.message, 1, self.routing_key, True)

    def encode(self) -> bytes:
        fields = [getattr(self.message, name) for name in Message.__struct_fields__]
        body = msgspec.msgpack.encode([self.place, self.is_urgent, self.routing_key, fields])
        return len(body).to_bytes(_LENGTH_BYTES) + body

    @classmethod
    def decode(cls, body: bytes) -> "_Order":
        place, is_urgent, routing_key, fields = msgspec.msgpack.decode(body)
        return cls(place, is_urgent, routing_key, Message(*fields))


class _Report(msgspec.Struct, frozen=True):
    """How the delivery ended."""

    end: str
    """`ack`, `dead` or `back`."""
    error: str = ""


class ChildProcess:
    """A separate process.

    Args:
        place: where the agent is, as `load_agent` takes it.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._process: asyncio.subprocess.Process | None = None
        self._reader = asyncio.StreamReader()
        self._transport: asyncio.ReadTransport | None = None

    async def handle(self, delivery: Delivery, *, is_urgent: bool) -> Exception | None:
        """Handle a delivery; return what `Take` says of its end: None = acknowledge it.

        Raises:
            ProcessEnded: the process has ended without saying how the delivery ended.
        """
        order = _Order(self._place, is_urgent, delivery.routing_key, delivery.message)
        try:
            process = self._process or await self._start()
            assert process.stdin is not None
            with suppress(ConnectionError):
                process.stdin.write(order.encode())
                await process.stdin.drain()
            size = await self._reader.readexactly(_LENGTH_BYTES)
            report = msgspec.json.decode(await self._reader.readexactly(int.from_bytes(size)), type=_Report)
        except asyncio.IncompleteReadError:
            code = await self._kill()
            raise ProcessEnded(self._place, code) from None
        except BaseException:
            await self._kill()
            raise
        if report.end == "ack":
            return None
        return DeadLetter(report.error) if report.end == "dead" else GiveBack(report.error)

    async def close(self) -> None:
        """Let the process drain and end; idempotent."""
        process = self._process
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), DRAIN_SECONDS)
            await self._kill()

    async def _start(self) -> asyncio.subprocess.Process:
        reading, writing = os.pipe()
        pipe = os.fdopen(reading, "rb", buffering=0)
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, str(writing), stdin=asyncio.subprocess.PIPE, pass_fds=(writing,)
            )
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(writing)
        self._reader = asyncio.StreamReader()
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), pipe
        )
        return self._process

    async def _kill(self) -> int | None:
        process, self._process = self._process, None
        if self._transport is not None:
            self._transport.close()
        if process is None:
            return None
        with suppress(ProcessLookupError):
            process.kill()  # it has said everything, or nobody waits for it any more
        return await process.wait()


@dataclass
class _OneDelivery:
    """The host of a child: its agent gets one delivery, and the child runs its outbox."""

    outbox: ReceiptOutbox
    orchestrators: Orchestrators

    def join(self, worker: Worker) -> None:
        """Do nothing: the child asks the worker itself."""

    def leave(self, worker: Worker) -> None:
        """Do nothing, too."""

    async def extend(self) -> None:
        """Let in nothing: the host takes the answers, and keeps them in the state store."""

    async def handle_apart(
        self, agent_id: str, delivery: Delivery, runs: Literal["thread", "process"], *, is_urgent: bool
    ) -> Exception | None:
        """Refuse: this is apart."""
        raise AssertionError

    def runs(self, agent_id: str, risk: Risk | None) -> Runs:
        """Return `loop`: this is apart."""
        return "loop"


@asynccontextmanager
async def _worker_of(
    agent: Agent, settings: WorkerSettings, bus_settings: BusSettings
) -> AsyncIterator[tuple[Worker, asyncio.Future[None]]]:
    from apc_bus.rabbit import connect_rabbit

    async with open_stores(settings, CONNECTIONS) as stores:
        bus = await connect_rabbit(bus_settings, purpose=f"apart {agent.agent_id}", shards=settings.shards)
        outbox = ReceiptOutbox(bus, settings.receipt_linger, settings.outcome_linger)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            worker = Worker(
                agent,
                bus,
                settings=settings.model_copy(update={"worker_intra": "process"}),
                states=stores.states,
                tasks=stores.tasks_of(agent),
                effects=stores.effects,
                memory=stores.memory,
                schedules=None,  # they fire in the host
                artifacts=open_artifact_store(bus_settings),
                host=_OneDelivery(outbox, Orchestrators(agent.agent_id)),
            )
            async with running(outbox.run()):
                try:
                    await worker.start(partial(end_future, ended))
                    yield worker, ended
                finally:
                    await worker.drain()
        finally:
            await bus.close()


class _Child:
    """This process, when it is a child: takes orders from its standard input until that ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._orders: asyncio.Queue[_Order | None] = asyncio.Queue()
        self._is_at_work = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), name="orders", daemon=True).start()
        if (order := await self._orders.get()) is None:
            return
        self._is_at_work = True
        try:
            async with _worker_of(load_agent(order.place), WorkerSettings(), BusSettings()) as (worker, ended):
                started = _Started(loop, worker, ended, asyncio.Event())
                while order is not None:
                    self._is_at_work = True
                    self._say(_report(await _handled(started, order.delivery, is_urgent=order.is_urgent)))
                    self._is_at_work = False
                    order = await self._orders.get()
        except (ApcError, OSError) as failure:  # broker or database are away: another process tries it again
            if self._is_at_work:
                self._say(_Report("back", str(failure)))

    def _say(self, report: _Report) -> None:
        body = msgspec.json.encode(report)
        os.write(self._descriptor, len(body).to_bytes(_LENGTH_BYTES) + body)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read orders, in a thread. The end of the input amid work is that of the host: nobody waits any more."""
        while size := _read(_LENGTH_BYTES):
            order = _Order.decode(_read(int.from_bytes(size)))
            loop.call_soon_threadsafe(self._orders.put_nowait, order)
        if self._is_at_work:
            os.kill(os.getpid(), signal.SIGKILL)
        loop.call_soon_threadsafe(self._orders.put_nowait, None)


def _report(error: Exception | None) -> _Report:
    if error is None:
        return _Report("ack")
    return _Report("dead" if isinstance(error, DeadLetter) else "back", str(error))


async def _handled(started: _Started, delivery: Delivery, *, is_urgent: bool) -> Exception | None:
    """Return what became of a delivery, in the loop of its worker."""
    done = started.worker.take(delivery, is_urgent=is_urgent)
    await asyncio.wait({done, started.ended}, return_when=asyncio.FIRST_COMPLETED)
    if not done.done():
        return GiveBack(f"the worker has ended: {started.ended.exception()}")
    error = done.exception()
    assert error is None or isinstance(error, Exception), "a delivery ends with nothing else"
    return error


def _read(size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (part := os.read(0, size - len(found))):
        found += part
    return bytes(found)


def main() -> None:
    """Handle the deliveries that the standard input names, and write how they ended to the given descriptor."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    configure_logs(ConsoleSettings().log_level)
    asyncio.run(_Child(descriptor).run())


if __name__ == "__main__":
    main()
