"""A host: many agents in one process, over one inbox, one connection to publish on, one outbox, one pool.

Each agent is a `Worker` as it would be alone. What the broker hands over names its recipient in the routing key.
"""

import asyncio
import gc
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from operator import attrgetter
from random import uniform
from time import monotonic
from typing import Any, Literal

from apc_agents.agent import Agent, Runs
from apc_agents.errors import AgentError, AgentInvalid
from apc_agents.outbox import ReceiptOutbox
from apc_agents.running.delivery import Orchestrators
from apc_agents.running.intake import Ear, SubstrateListener
from apc_agents.running.isolation import ChildProcess, Children, ChildThread, LoopWatchdog
from apc_agents.running.service import Stores, keep_serving, open_artifact_store, open_stores, stopped_by_signals
from apc_agents.running.worker import Worker
from apc_bus.chaos import disturb
from apc_bus.concurrency import (
    Backoff,
    Health,
    cancelled,
    end_future,
    failure_of,
    first_of,
    keep_running,
    reason_of,
    running,
)
from apc_bus.consuming import Consumer, consume
from apc_bus.database import problems_of
from apc_bus.errors import DeadLetter, GiveBack, QueueMissing
from apc_bus.last_resort import LastResort, Risk
from apc_bus.port import Bus, Delivery
from apc_bus.settings import BusSettings, WorkerSettings
from apc_bus.telemetry import get_logger
from apc_bus.topology import host_queue, recipient_of
from apc_contracts.contract.contract import load_contract

PREFETCH = 5_000
"""Deliveries of each queue that a host holds at most. Above half of it, agents that are stuck may hold up others."""
HEARTBEAT = timedelta(seconds=3)
"""Of the connections: after twice this time the broker has noticed that a host is frozen."""
CONNECTIONS = 16
"""To the database, for all agents."""
PROCESSES, THREADS = 4, 8
"""Child processes, and threads, that work at the same time; as many wait for the next packet of their agent."""
STARTING = 32
"""Agents that start at the same time."""
START_SECONDS = 10.0
"""After so long the start of an agent holds up no other one."""
GRACE_SECONDS = 1.0
"""How long a stopping host waits for the ends of what its agents have handled."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds between two starts of an agent that fails."""
LONGEST_TASK_POLL = timedelta(minutes=1)
"""After so long an agent looks for tasks itself, whatever the poll of its host has found."""
FORGETTING_INTERVAL = timedelta(hours=1)
"""In this time each agent forgets once what is too old."""
STUCK_SECONDS = 60.0
"""An agent is stuck when packets wait for it, and none of those in its handlers has ended for so long."""
MOST_NAMED = 10
"""Agents named in one sentence."""
OTHER_SECONDS, LOOK_SECONDS = 5.0, 0.1
"""How long a host that was not the first at its urgent queue waits until the first one is at the normal queue too."""

_log = get_logger("apc_agents")


@dataclass(slots=True, eq=False)
class _Parcel:
    """A delivery on its way to an agent of the host."""

    number: int
    """Of its arrival."""
    agent_id: str
    delivery: Delivery
    is_urgent: bool
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Ends as the handling does; a worker that stops alone leaves it to the next one."""


@dataclass(slots=True)
class _Held:
    count: int = 0
    moved_at: float = 0.0
    """When the last one ended, or the first one came; seconds of the monotonic clock."""


class HostInbox:
    """The two queues of a host, each consumed once; every delivery goes to the worker that its routing key names.

    Args:
        bus: stays the caller's.
        host: whose queues.
        agents: those that run here, by agent_id; what comes for another one is dead-lettered.
        last_resort: that of the process.
        prefetch: deliveries of each queue that the broker hands over at most.
    """

    def __init__(
        self, bus: Bus, host: str, agents: Mapping[str, Agent], last_resort: LastResort, prefetch: int = PREFETCH
    ) -> None:
        self._bus = bus
        self._host = host
        self._agents = agents
        self._last_resort = last_resort
        self._prefetch = prefetch
        self._members: dict[str, Worker] = {}
        self._arrived = 0
        self._parked: defaultdict[str, list[_Parcel]] = defaultdict(list)
        """What came while the worker of its agent was away."""
        self._known_keys: dict[tuple[str, bool], str] = {}
        self._held: dict[str, _Held] = {}
        self._consumers: list[Consumer] = []
        self._is_stopping = False

    def join(self, worker: Worker) -> None:
        """Hand the packets of an agent to its worker from now on, first those that have waited for it."""
        self._members[worker.agent_id] = worker
        # A worker that stops gives back what waits before what its handlers had.
        for parcel in sorted(self._parked.pop(worker.agent_id, ()), key=attrgetter("number")):
            self._hand_over(parcel)

    def leave(self, worker: Worker) -> None:
        """Keep the packets of an agent for its next worker."""
        if self._members.get(worker.agent_id) is worker:
            del self._members[worker.agent_id]

    @asynccontextmanager
    async def consuming(self) -> AsyncIterator[None]:
        """Consume both queues meanwhile. Raises QueueMissing, BusUnavailable."""
        urgent, normal = (self._consume(is_urgent=is_urgent) for is_urgent in (True, False))
        is_first = not (await self._bus.depth(host_queue(self._host, urgent=True))).consumers
        async with urgent as first:
            await self._let_the_first_be_first(is_first=is_first)
            async with normal as second:
                self._consumers = [first, second]
                try:
                    yield
                finally:
                    self._consumers = []
                    self.give_back()

    def _consume(self, *, is_urgent: bool) -> AbstractAsyncContextManager[Consumer]:
        # Not one at a time at the broker: handlers of one host wait for answers of each other. They have their turns
        # one after the other all the same, and no limit of deliveries counts the end of the host against what it holds.
        return consume(
            self._bus,
            host_queue(self._host, is_urgent),
            partial(self._take, is_urgent=is_urgent),
            self._prefetch,
            grace=GRACE_SECONDS,
            last_resort=self._last_resort,
            one_at_a_time=False,
            tell=self._tell,
        )

    async def _let_the_first_be_first(self, *, is_first: bool) -> None:
        """Wait until the process that is active at the urgent queue consumes the normal one, too.

        The broker makes the first consumer of a queue the active one: a process should be active at both or at none.
        """
        end = monotonic() + OTHER_SECONDS
        while not is_first and monotonic() < end:
            if (await self._bus.depth(host_queue(self._host, urgent=False))).consumers:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def extend(self) -> None:
        """Let in what is behind the deliveries that are held, in both queues: another agent of the host may answer."""
        for consumer in self._consumers:
            await consumer.extend()

    def give_back(self) -> None:
        """Take nothing any more, and give back what waits for an agent that is away."""
        self._is_stopping = True
        for parcels in self._parked.values():
            for parcel in parcels:
                end_future(parcel.done, GiveBack("the host stopped before the worker took the packet"))
        self._parked.clear()

    @property
    def held(self) -> int:
        """Deliveries without an end."""
        return sum(held.count for held in list(self._held.values()))

    @property
    def is_full(self) -> bool:
        """Whether so much is held that packets for agents that are not stuck may have to wait at the broker."""
        return self.held > self._prefetch // 2

    @property
    def stuck(self) -> list[str]:
        """The agents with waiting packets of which none has ended for STUCK_SECONDS; from any thread."""
        latest = monotonic() - STUCK_SECONDS
        return sorted(
            agent_id
            for agent_id, held in list(self._held.items())
            if held.count > self._agents[agent_id].concurrency and held.moved_at < latest
        )

    def _take(self, delivery: Delivery, *, is_urgent: bool) -> asyncio.Future[None]:
        agent_id = self._recipient(delivery.routing_key, is_urgent=is_urgent)
        if agent_id is None:
            _log.error("recipient_not_on_host", host=self._host, routing_key=delivery.routing_key)
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_exception(
                DeadLetter(f"key {delivery.routing_key!r} names no agent that runs on host {self._host}")
            )
            return done
        self._arrived += 1
        parcel = _Parcel(self._arrived, agent_id, delivery, is_urgent)
        held = self._held.setdefault(agent_id, _Held(0, monotonic()))
        held.count += 1
        parcel.done.add_done_callback(partial(self._count_down, agent_id))
        self._hand_over(parcel)
        return parcel.done

    def _recipient(self, key: str, *, is_urgent: bool) -> str | None:
        """Return the agent that a routing key names, if it runs here; the keys of such agents are remembered."""
        found = self._known_keys.get((key, is_urgent))
        if found is None:
            found = recipient_of(host_queue(self._host, is_urgent), key)
            if found is None or found not in self._agents:
                return None
            self._known_keys[key, is_urgent] = found
        return found

    def _hand_over(self, parcel: _Parcel) -> None:
        if self._is_stopping:
            end_future(parcel.done, GiveBack("the host takes nothing any more"))
            return
        member = self._members.get(parcel.agent_id)
        if member is None:
            self._parked[parcel.agent_id].append(parcel)
            return
        taken = member.take(parcel.delivery, is_urgent=parcel.is_urgent)
        taken.add_done_callback(partial(self._note_end, parcel))

    def _note_end(self, parcel: _Parcel, taken: asyncio.Future[None]) -> None:
        error = failure_of(taken)
        if isinstance(error, GiveBack) and not self._is_stopping:
            self._parked[parcel.agent_id].append(parcel)  # its worker stops alone; the next one takes it
        else:
            end_future(parcel.done, error)

    def _count_down(self, agent_id: str, done: asyncio.Future[None]) -> None:
        held = self._held[agent_id]
        held.count -= 1
        held.moved_at = monotonic()
        if not held.count:
            del self._held[agent_id]

    def _tell(self, delivery: Delivery, done: asyncio.Future[None], error: DeadLetter) -> None:
        found = [self._recipient(delivery.routing_key, is_urgent=is_urgent) for is_urgent in (True, False)]
        agent_id = found[0] or found[1]
        if agent_id is None or agent_id not in self._members:
            raise LookupError(f"nobody runs here who could report {delivery.routing_key!r}")
        self._members[agent_id].tell_set_aside(delivery, done, error)


class Host:
    """Runs the agents of one host over one bus, until it is told to stop.

    Args:
        host: its id.
        agents: those that run here.
        bus: connected as the broker user of the host; stays the caller's.
        stores: of all agents.
        settings: of all agents.
        bus_settings: for the artifacts of all agents and the connections of threads; None = there are none.
        last_resort: that of the process; None = one with the data folder of the settings.
        places: agent_id -> where `load_agent` finds the agent, for child processes; without it there are none.
    """

    def __init__(
        self,
        host: str,
        agents: Sequence[Agent],
        bus: Bus,
        stores: Stores,
        settings: WorkerSettings,
        bus_settings: BusSettings | None = None,
        *,
        last_resort: LastResort | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        self.host = host
        self._places, self._bus_settings = places or {}, bus_settings
        self._children: Mapping[Literal["thread", "process"], Children] = {
            "thread": Children(self._thread_of, THREADS),
            "process": Children(lambda agent_id: ChildProcess(self._places[agent_id]), PROCESSES),
        }
        self._agents = agents_by_id(agents)
        check_host(self._agents.values(), settings)
        self._bus, self._stores = bus, stores
        self._artifacts = None if bus_settings is None else open_artifact_store(bus_settings)
        # A module of an agent is in this process, or nowhere: nothing is declared for one agent of a host.
        own = {} if stores.pool is None else {"task_poll": LONGEST_TASK_POLL}
        self._settings = settings.model_copy(update={"worker_intra": "process", **own})
        self._task_poll = settings.task_poll
        self._last_resort = last_resort or LastResort(settings.data_dir, notes_each_run=True)
        self.outbox = ReceiptOutbox(bus, settings.receipt_linger, settings.outcome_linger)
        self.inbox = HostInbox(bus, host, self._agents, self._last_resort)
        self._ears: dict[str, Ear] = {}
        self._failed: dict[str, str] = {}
        """Why an agent does not run: it is started again and again."""
        self._workers: dict[str, Worker] = {}
        """Those that run, and those that have failed and drain."""
        self._starting: set[asyncio.Task[None]] = set()
        """What starts agents: an agent that runs, and has no packets, has no task."""
        self._backoffs: dict[str, Backoff] = {}
        """Of the agents that have failed."""
        self.orchestrators = Orchestrators(f"host {host}")
        self._health = Health()
        self._contract = load_contract(settings.contract)
        self._watchdog = LoopWatchdog(host)
        self.ready = asyncio.Event()
        """Set while the queues are consumed."""

    def join(self, worker: Worker) -> None:
        """Hand the packets of an agent to its worker from now on, and what it hears on the substrate."""
        if (ear := worker.ear) is not None:
            self._ears[worker.agent_id] = ear
        self.inbox.join(worker)

    def leave(self, worker: Worker) -> None:
        """Hand the worker nothing more; idempotent."""
        self._ears.pop(worker.agent_id, None)
        self.inbox.leave(worker)

    async def extend(self) -> None:
        """Let in what is behind the deliveries that are held."""
        await self.inbox.extend()

    def runs(self, agent_id: str, risk: Risk | None) -> Runs:
        """Return where a packet is handled: a process takes one that has ended a host that was alone with it."""
        wanted = self._agents[agent_id].runs
        if agent_id in self._places and (wanted == "process" or (risk is not None and risk.ends > 0)):
            return "process"
        return "thread" if wanted == "thread" and self._bus_settings is not None else "loop"

    async def handle_apart(
        self, agent_id: str, delivery: Delivery, runs: Literal["thread", "process"], *, is_urgent: bool
    ) -> Exception | None:
        """Handle a delivery in a thread or a child process, of which few work at a time. Raises ProcessEnded."""
        stays = self._agents[agent_id].runs == runs
        return await self._children[runs].handle(agent_id, delivery, is_urgent=is_urgent, stays=stays)

    def _thread_of(self, agent_id: str) -> ChildThread:
        assert self._bus_settings is not None, "`runs` has looked"
        return ChildThread(self._agents[agent_id], self._settings, self._bus_settings)

    @property
    def problems(self) -> list[str]:
        """Why the host is not ready, a sentence each; agents that are stuck or fail are none. From any thread."""
        idle = [] if self.ready.is_set() else [f"the agents of host {self.host} do not run yet"]
        away = [] if self._stores.pool is None else problems_of(self._stores.pool)
        full = []
        if self.inbox.is_full:
            stuck = f": stuck are {_names(self.inbox.stuck)}" if self.inbox.stuck else ""
            full = [f"host {self.host} holds {self.inbox.held} packets without an end, more than half it may{stuck}"]
        return idle + away + full + self._health.problems + self._bus.problems

    @property
    def remarks(self) -> list[str]:
        """How many agents run, and which do not as they should, a sentence each. From any thread."""
        stuck, failed = self.inbox.stuck, sorted(self._failed)
        running_now = sum(worker.is_running for worker in list(self._workers.values()))
        said = [f"{running_now} of {len(self._agents)} agents run on host {self.host}"]
        if stuck:
            said.append(f"degraded: {len(stuck)} stuck, no packet has ended for {STUCK_SECONDS:g} s: {_names(stuck)}")
        if (blocking := self._watchdog.blocked) is not None:
            said.append(f"degraded: the event loop is blocked by {blocking or 'something that is no handler'}")
        if failed:
            said.append(f"degraded: {len(failed)} do not start: {_names(failed)}")
        return said

    async def run(self, stop: asyncio.Event) -> None:
        """Run the agents until `stop` is set, then drain them; the inbox is left when they are drained.

        Raises:
            QueueMissing: the host has no queues: no agent is registered on it, or the topology is not applied.
            BusUnavailable.
        """
        began = monotonic()
        async with running(self.outbox.run()) as sending:
            try:
                await first_of(sending, stop.wait(), self._start_all())
                if stop.is_set():
                    return
                async with self.inbox.consuming():
                    self.ready.set()
                    gc.collect()
                    gc.freeze()  # what stands as long as the process is not looked through at each collection
                    seconds = round(monotonic() - began, 2)
                    _log.info("host_started", host=self.host, agents=len(self._workers), seconds=seconds)
                    with self._watchdog.watching():
                        await first_of(stop.wait(), sending, *self._runners(stop))
                    self.ready.clear()
                    self.inbox.give_back()
                    await self._drain()
            finally:
                self.ready.clear()
                await self._drain()
                await asyncio.gather(*(children.close() for children in self._children.values()))
        _log.info("host_stopped", host=self.host)

    async def _start_all(self) -> None:
        """Start every agent once, a few at a time; one that is slow, or fails, holds up no other."""
        waiting = iter(self._agents.values())

        async def start_some() -> None:
            for agent in waiting:
                await asyncio.wait({self._beside(self._start(agent))}, timeout=START_SECONDS)

        await asyncio.gather(*(start_some() for _ in range(STARTING)))

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return task

    async def _start(self, agent: Agent) -> None:
        """Start an agent; one that fails is started again later."""
        worker: Worker | None = None
        try:
            worker = self._make(agent)
            await worker.start(lambda error: self._fail(agent, worker, error))
        except BaseException as error:
            if not isinstance(error, Exception):
                if worker is not None:
                    await worker.drain()
                raise
            self._fail(agent, worker, error)
        else:
            self._workers[agent.agent_id] = worker
            self._failed.pop(agent.agent_id, None)

    def _fail(self, agent: Agent, worker: Worker | None, error: BaseException) -> None:
        agent_id, reason = agent.agent_id, reason_of(error)
        if self._failed.get(agent_id) != reason:
            _log.error("agent_failed", agent_id=agent_id, host=self.host, exc_info=error)
        self._failed[agent_id] = reason
        self._beside(self._start_again(agent, worker))

    async def _start_again(self, agent: Agent, worker: Worker | None) -> None:
        agent_id = agent.agent_id
        backoff = self._backoffs.setdefault(agent_id, Backoff(FIRST_WAIT, LONGEST_WAIT))
        if worker is not None:
            await worker.drain()
            if monotonic() - worker.made_at > LONGEST_WAIT:
                backoff.reset()  # it went well for a while: this is a new problem
        self._workers.pop(agent_id, None)
        await backoff.wait()
        await self._start(agent)

    async def _drain(self) -> None:
        """Start nothing more, and drain all workers; idempotent."""
        await cancelled(*self._starting)
        await asyncio.gather(*(worker.drain() for worker in self._workers.values()))
        self._workers.clear()

    def _runners(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """Return what the host does once for all of its agents."""
        keep = partial(keep_running, health=self._health, stop=stop)
        runs = [keep(self._forget, task="the purges")]
        if self._stores.pool is not None and any(agent.tools is not None for agent in self._agents.values()):
            runs.append(keep(self._look_for_tasks, task="the poll of tasks"))
        if any(agent.substrate_handler is not None for agent in self._agents.values()):
            listener = SubstrateListener(self._bus, self._ears, self._settings.shards, f"host {self.host}", waits=False)
            runs.append(keep(listener.run, task="the substrate"))
        return runs

    async def _look_for_tasks(self) -> None:
        """Wake each agent for whose tasks another process has left something to do: one question for all of them."""
        while True:
            stores = {agent_id: tasks for agent_id, worker in self._workers.items() if (tasks := worker.tasks)}
            for asked in islice(stores.values(), 1):  # any of them answers for all: they share the database
                for agent_id in await asked.with_work(stores):
                    await stores[agent_id].news.tell()
            await asyncio.sleep(self._task_poll.total_seconds())

    async def _forget(self) -> None:
        """Let one agent after the other forget what is too old, all of them within FORGETTING_INTERVAL."""
        pause = FORGETTING_INTERVAL.total_seconds() / len(self._agents)
        while True:
            for agent_id in self._agents:
                await asyncio.sleep(uniform(0, 2 * pause))
                if (worker := self._workers.get(agent_id)) is not None:
                    await worker.forget_old()

    def _make(self, agent: Agent) -> Worker:
        stores = self._stores
        return Worker(
            agent,
            self._bus,
            settings=self._settings,
            states=stores.states,
            tasks=stores.tasks_of(agent),
            effects=stores.effects,
            memory=stores.memory,
            schedules=stores.schedules,
            artifacts=self._artifacts,
            contract=self._contract,
            last_resort=self._last_resort,
            host=self,
        )


def _names(agent_ids: Sequence[str]) -> str:
    more = len(agent_ids) - MOST_NAMED
    return ", ".join(islice(agent_ids, MOST_NAMED)) + (f" and {more} more" if more > 0 else "")


def agents_by_id(agents: Iterable[Agent]) -> dict[str, Agent]:
    """Return agents by their id. Raises AgentInvalid for two of one id, and for none at all."""
    found: dict[str, Agent] = {}
    for agent in agents:
        if found.setdefault(agent.agent_id, agent) is not agent:
            raise AgentInvalid(f"two agents of this host have the id {agent.agent_id!r}: give each its own")
    if not found:
        raise AgentInvalid("a host needs an agent: name one as package.module:agent")
    return found


def check_host(agents: Iterable[Agent], settings: WorkerSettings) -> None:
    """Raise AgentInvalid for what several agents of one process cannot have."""
    file = settings.agent_key_file
    if settings.agent_key is not None or (file is not None and "{agent_id}" not in str(file)):
        raise AgentInvalid(
            "APC_AGENT_KEY would sign for every agent of this host: set APC_AGENT_KEY_FILE with {agent_id} in it, or "
            "run the agent that signs as `apc worker`"
        )
    deadly = sorted(agent.agent_id for agent in agents if agent.may_crash and agent.runs != "process")
    if deadly:
        raise AgentInvalid(
            f"{_names(deadly)}: a handler with may_crash would end every agent of this host: make the agent with "
            'runs="process", or run it as `apc worker`'
        )


async def run_host(
    host: str,
    agents: Sequence[Agent],
    settings: WorkerSettings | None = None,
    *,
    bus_settings: BusSettings | None = None,
    places: Mapping[str, str] | None = None,
    stop: asyncio.Event | None = None,
    on_host: Callable[[Host], None] | None = None,
) -> None:
    """Run agents in this process until SIGTERM or SIGINT (or `stop`), then drain them.

    While the broker, the database or the host's queues are not there, it says so and tries again with back-off. A
    second process of the same host is its standby: the broker hands everything to the first one, as long as it lives.

    Args:
        host: the host on which the agents are registered.
        agents: what to run.
        settings: default those of the environment (docs/reference/settings.md).
        bus_settings: default those of the environment.
        places: agent_id -> where `load_agent` finds the agent. With it a packet that ended a host while it was alone
            is handled in a child process from then on.
        stop: set to end it, as SIGTERM does.
        on_host: told of each host that is made: a new one is made when the broker was away at the start.

    Raises:
        AgentInvalid: two agents of one id, no agent, a key that would sign for all, a handler that may crash.
        AgentError: no broker is configured.
    """
    settings, bus_settings = settings or WorkerSettings(), bus_settings or BusSettings()
    stop = stop or asyncio.Event()
    check_host(agents_by_id(agents).values(), settings)
    if not bus_settings.amqp_nodes:
        raise AgentError("a host needs a broker: set APC_AMQP_URL, or run the agents inside `apc up`")
    resort = LastResort(settings.data_dir, notes_each_run=True)

    def make(bus: Bus, stores: Stores) -> Host:
        made = Host(host, agents, bus, stores, settings, bus_settings, last_resort=resort, places=places)
        if on_host is not None:
            on_host(made)
        return made

    with stopped_by_signals(stop):
        await keep_serving(stop, partial(_serve, host, settings, bus_settings, make, stop))


async def _serve(
    host: str,
    settings: WorkerSettings,
    bus_settings: BusSettings,
    make: Callable[[Bus, Stores], Host],
    stop: asyncio.Event,
) -> None:
    from apc_bus.rabbit import connect_rabbit  # late: half a second of imports

    purpose = f"host {host}"
    async with open_stores(settings, CONNECTIONS) as stores:
        connected = await connect_rabbit(bus_settings, purpose=purpose, shards=settings.shards, heartbeat=HEARTBEAT)
        bus = disturb(connected, purpose, bus_settings)
        try:
            await make(bus, stores).run(stop)
        except QueueMissing as error:
            raise QueueMissing(f"{error}; is an agent registered on host {host}?") from error
        finally:
            await bus.close()
