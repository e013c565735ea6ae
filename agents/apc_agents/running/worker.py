"""A worker: one agent at one bus. Takes packets from its two queues, handles them, reports what became of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from datetime import timedelta
from functools import cached_property, partial
from time import monotonic
from typing import Any, Literal, Protocol
from uuid import UUID

import asyncpg
from structlog.contextvars import bound_contextvars

from apc_agents.agent import Agent, Resources, Runs
from apc_agents.effect_maker import EffectMaker
from apc_agents.effects import EffectStore, InMemoryEffectStore
from apc_agents.emission import Builder, Draft
from apc_agents.emitter import Acknowledgements, ClaimChecks, Emitter, Sign
from apc_agents.errors import EmitError, ProcessEnded
from apc_agents.handling.delivery_end import FailureListener
from apc_agents.handling.dispatch import Dispatcher, InvocationListener
from apc_agents.handling.state import InMemoryStateStore, StateCache, StateStore
from apc_agents.outbox import ReceiptOutbox
from apc_agents.ports import BaseMemoryStore, find_mind, require_mind
from apc_agents.running.delivery import Inbound, KnownSessions, Orchestrators
from apc_agents.running.intake import Ear, Inbox, Intake, SubstrateListener
from apc_agents.scheduling import ScheduleRunner, ScheduleStore, Tick, fire_with
from apc_agents.task_port import TaskStore
from apc_bus.artifacts import ArtifactStore
from apc_bus.concurrency import Health, cancelled, end_future, failure_of, first_of, keep_running, running
from apc_bus.consuming import Consumer, Take, consume
from apc_bus.database import problems_of
from apc_bus.errors import DeadLetter, GiveBack, TaskEnded
from apc_bus.last_resort import ATTEMPTS, LastResort, Risk
from apc_bus.port import Bus, Delivery
from apc_bus.settings import WorkerSettings
from apc_bus.telemetry import current_trace, get_logger
from apc_bus.topology import INTER_AGENT, agent_queue
from apc_contracts.contract.contract import Contract, load_contract
from apc_contracts.identity.ids import shard_of
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import HeartbeatPayload
from apc_contracts.vocabulary import ORCHESTRATOR, PRESENCE_SESSION, Signal

# Says that an agent lives: at start, and after a time without any emit.

PRESENCE_TASK = "presence"
"""run_id and task_id of a HEARTBEAT."""

_log = get_logger("apc_agents")


async def send_heartbeats(emitter: Emitter, agent_id: str, silence: timedelta) -> None:
    """Send HEARTBEAT now, whenever the agent has been silent, and half as often while it emits, until cancelled.

    An agent that never falls silent is found among others by these alone.
    """
    loop = asyncio.get_running_loop()
    due = latest = loop.time()
    while True:
        now = loop.time()
        if now < due:
            await asyncio.sleep(due - now)
            due = min(latest, max(due, emitter.last_emit + silence.total_seconds()))
        else:
            await _send(emitter, agent_id, silence)
            due = loop.time() + silence.total_seconds()
            latest = due + silence.total_seconds()


async def _send(emitter: Emitter, agent_id: str, silence: timedelta) -> None:
    draft = Draft(
        payload=HeartbeatPayload(signal=Signal.HEARTBEAT),
        to=ORCHESTRATOR,
        session_id=PRESENCE_SESSION,
        run_id=PRESENCE_TASK,
        task_id=PRESENCE_TASK,
        ttl=2 * silence,
    )
    try:
        await emitter.emit(draft, None, 0)
    except EmitError as error:
        _log.warning("heartbeat_not_sent", agent_id=agent_id, reason=str(error))


class Hosting(Protocol):
    """What the agents of a host share: an inbox, an outbox, the substrate. `apc_agents.running.host` has it."""

    @property
    def outbox(self) -> ReceiptOutbox:
        """The outbox, which the host runs."""
        ...

    @property
    def orchestrators(self) -> Orchestrators:
        """What the deliveries of all agents have told of the orchestrators."""
        ...

    def join(self, worker: "Worker") -> None:
        """Hand the packets of the worker's agent to it from now on, first those that have waited for it."""
        ...

    def leave(self, worker: "Worker") -> None:
        """Hand the worker no more packets."""
        ...

    async def extend(self) -> None:
        """Let in what is behind the packets that are held: a handler waits for an answer."""
        ...

    def runs(self, agent_id: str, risk: Risk | None) -> Runs:
        """Return where a packet of the agent is handled."""
        ...

    async def handle_apart(
        self, agent_id: str, delivery: Delivery, runs: Literal["thread", "process"], *, is_urgent: bool
    ) -> Exception | None:
        """Handle a delivery outside the loop; return what `Take` says of its end: None = acknowledge it.

        Raises:
            ProcessEnded: the process has ended without saying how the delivery ended.
        """
        ...


handling: dict[asyncio.Task[Any], tuple[str, UUID]] = {}
"""The agent and the packet of each task of this process that handles one; any thread may look."""
PAUSE_SECONDS = 1.0
"""Until a packet is handled again whose thread or process had no broker or no database."""
Fail = Callable[[BaseException], None]
"""Told why a worker that has started can go on no more."""
MIDDLEWARE_GRACE_SECONDS = 1.0
"""How long middlewares may take after the last handler has ended; what is not acknowledged then comes again."""


class Worker:
    """Runs one agent over one bus. Making it raises AgentKeyUnusable when it has to sign and cannot.

    `run_worker` makes one for a process over RabbitMQ. Here it runs over a broker in RAM:

    ```python
    from apc_bus import InMemoryBroker, build_topology

    broker, stop = InMemoryBroker(build_topology(1, [desk.queues()])), asyncio.Event()
    worker = Worker(desk, broker.connect(desk.queues().user), settings=WorkerSettings(shards=1, database_url=None))
    running = asyncio.create_task(worker.run(stop))
    await worker.ready.wait()
    stop.set()  # as SIGTERM does
    await running
    ```

    Args:
        agent: what to run.
        bus: connected as the broker user under which the agent is registered; stays the caller's.
        settings: default from the environment.
        states: where ctx.state is kept; default in memory.
        tasks: where the tasks of an agent with tools are kept; default in memory.
        effects: where ctx.once keeps what was made; default in memory.
        memory: what ctx.memory is; default in memory.
        schedules: where it is kept which firings have come; without it the agent's schedules do not run.
        artifacts: what ctx.artifacts is, and where the long texts of too large packets lie; default none.
        contract: for the local admit() and ctx.contract; default the one that the settings name.
        sign: makes the signature header of what the agent emits; default with the key that the settings name.
        database: the pool of the stores; while it is away the worker is not ready. Default none.
        last_resort: that of the process, which its workers share; default one with the data folder of the settings.
        on_failure: told of every exception that a handler raised.
        on_invocation: told of the steps of every run of a handler that emitted something.
        host: what the agent shares with others of this process; None = it has its own queues, outbox and heartbeat.
    """

    def __init__(
        self,
        agent: Agent,
        bus: Bus,
        *,
        settings: WorkerSettings | None = None,
        states: StateStore | None = None,
        tasks: TaskStore | None = None,
        effects: EffectStore | None = None,
        memory: BaseMemoryStore | None = None,
        schedules: ScheduleStore | None = None,
        artifacts: ArtifactStore | None = None,
        contract: Contract | None = None,
        sign: Sign | None = None,
        database: asyncpg.Pool | None = None,
        last_resort: LastResort | None = None,
        on_failure: FailureListener | None = None,
        on_invocation: InvocationListener | None = None,
        host: Hosting | None = None,
    ) -> None:
        settings = settings or WorkerSettings()
        self._host = host
        self._agent, self._bus, self._settings = agent, bus, settings
        self._schedules, self._database = schedules, database
        self._sessions = sessions = KnownSessions(agent.agent_id)
        contract, acknowledgements = contract or load_contract(settings.contract), Acknowledgements()
        claim_checks = ClaimChecks(artifacts, settings.claim_check_bytes)
        self._outbox = host.outbox if host else ReceiptOutbox(bus, settings.receipt_linger, settings.outcome_linger)
        self._emitter = self._make_emitter(acknowledgements, contract, claim_checks, sign)
        self._states = StateCache(states or InMemoryStateStore(), agent.agent_id)
        self._intake, self._inbox = self._make_intake(acknowledgements), Inbox()
        self._tasks = tasks or (None if agent.tools is None else require_mind("tools").task_store(agent.agent_id))
        self._effects = _effect_maker(effects or InMemoryEffectStore(), agent.agent_id, settings)
        self._dispatcher = Dispatcher(
            self._make_resources(memory, artifacts),
            self._outbox,
            self._states,
            sessions,
            contract,
            claim_checks,
            on_failure=on_failure,
            on_invocation=on_invocation,
        )
        self._is_stopping, self._health = False, Health()
        self._last_resort = last_resort or LastResort(settings.data_dir)
        self._idle()

    def _idle(self) -> None:
        """Begin without anything that runs."""
        self._takes = self._wrapped_takes()
        self._handlers: list[asyncio.Task[None]] = []
        """Each takes one packet after the other while some wait: an agent without packets has no task."""
        self._beside: list[asyncio.Task[None]] = []
        """What runs all the time: schedules and tasks."""
        self._context = copy_context()
        """In which handlers run; its variables are those that on_start has set."""
        self._fail: Fail = _ignore
        self.made_at = monotonic()
        """Seconds of the monotonic clock."""
        self.is_running = False
        """Whether handlers run: after on_start, until the worker stops. From any thread."""

    @cached_property
    def ready(self) -> asyncio.Event:
        """Set while handlers run. Made when somebody asks for it: a host has thousands of workers."""
        event = asyncio.Event()
        if self.is_running:
            event.set()
        return event

    @property
    def tasks(self) -> TaskStore | None:
        """Where the tasks of its agent are kept; None for one without tools."""
        return None if self._agent.tools is None else self._tasks

    @property
    def agent_id(self) -> str:
        """Whose worker it is."""
        return self._agent.agent_id

    def _make_intake(self, acknowledgements: Acknowledgements) -> Intake:
        agent, host = self._agent, self._host
        return Intake(
            agent.agent_id,
            self._sessions,
            acknowledgements,
            self._settings.shards,
            keeps_deliveries=host is not None and agent.runs != "loop",
            orchestrators=None if host is None else host.orchestrators,
        )

    def _make_resources(self, memory: BaseMemoryStore | None, artifacts: ArtifactStore | None) -> Resources:
        mind = find_mind()
        return Resources(
            agent=self._agent,
            emitter=self._emitter,
            effects=self._effects,
            memory_store=memory or (None if mind is None else mind.memory_store()),
            artifacts=artifacts,
            tasks=self._tasks,
        )

    def _make_emitter(
        self, acknowledgements: Acknowledgements, contract: Contract, claim_checks: ClaimChecks, sign: Sign | None
    ) -> Emitter:
        agent, settings = self._agent, self._settings
        return Emitter(
            self._bus,
            Builder(agent.actor, self._sessions),
            acknowledgements,
            contract,
            settings,
            claim_checks,
            outbox=self._outbox,
            sign=sign or _signer(settings, agent.agent_id),
            deliver_locally=self._deliver_locally,
            look_for_answers=self._look_for_answers,
        )

    @property
    def problems(self) -> list[str]:
        """Why the worker is not ready, a sentence each; empty = ready. From any thread."""
        idle = [] if self.is_running else [f"the handlers of {self._agent.agent_id} do not run"]
        away = [] if self._database is None else problems_of(self._database)
        return idle + away + self._health.problems + self._bus.problems

    async def run(self, stop: asyncio.Event) -> None:
        """Take and handle packets until `stop` is set, then drain.

        Draining: nothing new is taken, handlers that run may end within the drain timeout, what they reported is
        confirmed; packets without a handler yet go back to the queue.

        Raises:
            QueueMissing: the agent has no queues: it is not registered, or the topology not applied.
            Exception: whatever on_start raised.
        """
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with bound_contextvars(agent_id=self._agent.agent_id):
            async with running(self._outbox.run()) as sending, self._queues():
                try:
                    async with running(self._keep("the heartbeat", self._send_heartbeats, stop)):
                        await self.start(partial(end_future, ended))
                        await first_of(stop.wait(), sending, _end_of(ended), *self._listeners(stop))
                        if not stop.is_set():
                            raise TaskEnded(f"a task of {self.agent_id} has ended without having been told to stop")
                finally:
                    await self.drain()

    async def _send_heartbeats(self) -> None:
        await send_heartbeats(self._emitter, self._agent.agent_id, self._settings.heartbeat_silence)

    async def start(self, fail: Fail) -> None:
        """Join the host, if there is one, run on_start, and handle packets from then on; `drain` ends it all.

        Args:
            fail: told when the worker cannot go on; it is then to be drained.

        Raises:
            Exception: whatever on_start raised.
        """
        agent, self._fail = self._agent, fail
        with bound_contextvars(agent_id=agent.agent_id):
            if self._host is not None:
                self._host.join(self)
            for starter in agent.starters:
                await self._dispatcher.start(starter, PRESENCE_SESSION)
            self._beside = [self._begin(work) for work in self._runners()]
            self._context = copy_context()
        self.is_running = True
        if "ready" in self.__dict__:
            self.ready.set()
        for _ in range(len(self._inbox)):
            self._begin_handler()
        say = _log.info if self._host is None else _log.debug
        say("worker_started", agent_id=agent.agent_id, handles=sorted(agent.handles))

    async def drain(self) -> None:
        """Take nothing new, let handlers that run end within the drain timeout, and leave the host; idempotent."""
        self._fail = _ignore
        try:
            await cancelled(*self._beside)
            self._turn_away()
            await self._finish(list(self._handlers))
            await self._confirm_receipts()
        finally:
            if self._host is not None:
                self._host.leave(self)
        say = _log.info if self._host is None else _log.debug
        say("worker_stopped", agent_id=self._agent.agent_id)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the handlers; the worker cannot go on without it."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, ended: asyncio.Task[None]) -> None:
        if (error := failure_of(ended)) is not None:
            fail, self._fail = self._fail, _ignore
            fail(error)

    async def fire(self, tick: Tick) -> str:
        """Fire a schedule of the agent, whatever its cron line says; return the id of the session in which it comes.

        Args:
            tick: the schedule's name, and when it was due.

        Raises:
            AgentError: the agent has no such schedule.
            EmitRefused, BusError: as `ctx.emit`.
        """
        return await fire_with(self._emitter, self._agent.agent_id)(self._agent.schedule(tick.name), tick)

    def _keep(self, task: str, work: Callable[[], Awaitable[None]], stop: asyncio.Event) -> Coroutine[Any, Any, None]:
        return keep_running(work, task=task, health=self._health, stop=stop)

    def _runners(self) -> list[Coroutine[Any, Any, None]]:
        """Return what forgets old records, and runs the schedules of an agent and the tasks of one with tools."""
        stop = asyncio.Event()  # never set: they end when the worker is drained
        agent_id, schedules, store = self._agent.agent_id, self._agent.schedules, self._schedules
        forget = partial(self._states.forget_answers, self._settings.effect_retention)
        runs: list[Coroutine[Any, Any, None]] = []
        if self._host is None:
            runs.append(self._keep("the purge of effects", self._effects.purge, stop))
            runs.append(self._keep("the purge of answers", forget, stop))
        if schedules and store is not None:
            firing = ScheduleRunner(agent_id, schedules, store, fire_with(self._emitter, agent_id))
            runs.append(self._keep("the schedules", firing.run, stop))
        tools, tasks, settings = self._agent.tools, self._tasks, self._settings
        if tools is None or tasks is None:
            return runs
        level = self._agent.security_level
        run_tasks = require_mind("tools").task_runner(agent_id, tools, tasks, self._emitter, level, settings)
        return [*runs, self._keep("the runner of tasks", run_tasks, stop)]

    def _listeners(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """Return what reads the substrate for an agent that listens."""
        ear = self.ear
        if ear is None:
            return []
        listener = SubstrateListener(self._bus, {ear.agent_id: ear}, self._settings.shards, ear.agent_id)
        return [self._keep("the substrate", listener.run, stop)]

    @property
    def ear(self) -> Ear | None:
        """What hears the substrate for an agent that listens, a new one each time."""
        if self._agent.substrate_handler is None:
            return None
        return Ear(self._agent.agent_id, self._sessions, self._put, self._intake.time)

    async def forget_old(self) -> None:
        """Forget the effects and answers that nobody will ask for again. Raises what the stores raise."""
        await self._effects.purge_once()
        await self._states.forget_answers_once(self._settings.effect_retention)

    @asynccontextmanager
    async def _queues(self) -> AsyncIterator[None]:
        prefetch = self._settings.worker_prefetch
        self._consumers: dict[bool, Consumer] = {}
        """By whether their queue is the urgent one."""
        async with AsyncExitStack() as stack:
            for is_urgent in (True, False):
                # A crash counts against every packet that the broker has handed over. Control traffic still flows,
                # because a handler may wait for an ACK, and is handled first after a restart.
                ahead = 1 if self._agent.may_crash and not is_urgent else prefetch
                queue = agent_queue(self._agent.agent_id, is_urgent)
                consuming = consume(
                    self._bus,
                    queue,
                    partial(self.take, is_urgent=is_urgent),
                    ahead,
                    grace=MIDDLEWARE_GRACE_SECONDS,
                    last_resort=self._last_resort,
                    one_at_a_time=not is_urgent,
                    tell=self.tell_set_aside,
                )
                self._consumers[is_urgent] = await stack.enter_async_context(consuming)
            yield

    async def _look_for_answers(self, packet: Packet) -> list[Packet]:
        """Return the answers that this or another process has taken, and let in those behind waiting handlers.

        An answer is control traffic. Ordinary packets stay at the broker: a crash would count against each of them.
        """
        await (self._consumers[True] if self._host is None else self._host).extend()
        return await self._states.load_answers(packet)

    def _wrapped_takes(self) -> Mapping[bool, Take]:
        """Return what takes a delivery, by whether it is urgent; nothing for an agent without middlewares."""
        if not self._agent.middlewares:
            return {}
        from apc_bus.rabbit.faststream import with_middlewares  # late: FastStream takes half a second to import

        return {
            is_urgent: with_middlewares(partial(self._take, is_urgent=is_urgent), self._agent.middlewares, INTER_AGENT)
            for is_urgent in (True, False)
        }

    def take(self, delivery: Delivery, *, is_urgent: bool) -> asyncio.Future[None]:
        """Take a delivery; the future ends when it may be acknowledged, or with what happens to it instead.

        Args:
            delivery: from one of the agent's queues, or its host's.
            is_urgent: whether it came through the urgent one.
        """
        return self._takes[is_urgent](delivery) if self._takes else self._take(delivery, is_urgent=is_urgent)

    def _take(self, delivery: Delivery, *, is_urgent: bool) -> asyncio.Future[None]:
        try:
            if self._is_stopping:
                raise GiveBack("this worker takes nothing any more")
            inbound, is_new = self._intake.take(delivery, is_urgent)
        except Exception as error:  # one bad delivery must not end the consumer
            return _ended(error)
        if inbound is None:
            return _ended(None)
        if is_new:
            inbound.done.add_done_callback(partial(self._intake.end, inbound))
            self._put(inbound)
        return inbound.done

    def tell_set_aside(self, delivery: Delivery, done: asyncio.Future[None], error: DeadLetter) -> None:
        """Report a delivery that ended its workers: no handler can, and the sender has to hear of it.

        Args:
            delivery: what is set aside.
            done: ends with the error once the report is confirmed.
            error: why it is set aside.
        """
        receipt = self._intake.set_aside(delivery)
        if receipt is not None:
            self._outbox.add(*receipt)
        self._outbox.settle(done, error)

    def _put(self, inbound: Inbound) -> None:
        self._inbox.put(inbound)
        if self.is_running:
            self._begin_handler()

    def _begin_handler(self) -> None:
        """Begin one more task that handles packets, if the agent may have one."""
        if len(self._handlers) < self._agent.concurrency:
            task = asyncio.get_running_loop().create_task(self._handle_waiting(), context=self._context.copy())
            self._handlers.append(task)
            task.add_done_callback(self._end_handler)

    def _end_handler(self, ended: asyncio.Task[None]) -> None:
        self._handlers.remove(ended)
        self._note_end(ended)
        if self._inbox and self.is_running:  # what came while the task was on its way out
            self._begin_handler()

    async def _handle_waiting(self) -> None:
        """Handle one packet after the other until none is left whose session is free."""
        while (inbound := self._inbox.take()) is not None:
            in_hand = (self._agent.agent_id, inbound.packet.packet_id)
            LastResort.in_hand.add(in_hand)
            if (task := asyncio.current_task()) is not None:
                handling[task] = in_hand
            try:
                await self._handle(inbound)
            finally:
                LastResort.in_hand.discard(in_hand)
                if task is not None:
                    handling.pop(task, None)
                self._inbox.release(inbound)
            if self._inbox and self.is_running:  # the session that is free now, when this task takes another one
                self._begin_handler()

    async def _handle(self, inbound: Inbound) -> None:
        host, delivery = self._host, inbound.delivery
        runs = "loop" if host is None else host.runs(self._agent.agent_id, inbound.risk)
        if host is not None and delivery is not None and runs != "loop":
            await self._handle_apart(host, inbound, delivery, runs)
        elif inbound.risk is None:
            await self._dispatcher.process(inbound)
        else:
            async with inbound.risk.taken():
                await self._dispatcher.process(inbound)

    async def _handle_apart(
        self, host: Hosting, inbound: Inbound, delivery: Delivery, runs: Literal["thread", "process"]
    ) -> None:
        """Handle a packet in a thread, or in a child process; one that ends several processes is set aside."""
        agent_id, packet_id, risk = self._agent.agent_id, str(inbound.packet.packet_id), inbound.risk
        ends = 0 if risk is None else risk.ends
        while ends < ATTEMPTS:
            try:
                error = await host.handle_apart(agent_id, delivery, runs, is_urgent=inbound.is_urgent)
            except ProcessEnded as ended:
                ends += 1
                if risk is not None:
                    risk.count_end()
                _log.error("process_ended", agent_id=agent_id, packet_id=packet_id, ends=ends, reason=str(ended))
            except BaseException as failure:
                given_back = GiveBack(f"the worker stopped while a {runs} handled the packet")
                inbound.done.set_exception(failure if isinstance(failure, Exception) else given_back)
                raise
            else:
                if isinstance(error, GiveBack):  # it had no broker or no database
                    _log.warning(
                        "child_gave_back", agent_id=agent_id, packet_id=packet_id, runs=runs, reason=str(error)
                    )
                    await asyncio.sleep(PAUSE_SECONDS)
                elif error is not None:
                    return inbound.done.set_exception(error)
                else:
                    return inbound.done.set_result(None)
        dead = DeadLetter(f"packet {packet_id} ended its processes while it was alone in them")
        self.tell_set_aside(delivery, inbound.done, dead)

    def _deliver_locally(self, packet: Packet) -> None:
        """Take a packet between modules of this agent: handled here, logged by the orchestrator, without receipts."""
        shard = shard_of(packet.trace.session_id, self._settings.shards)
        inbound = Inbound(packet, 1, shard, has_receipts=False, is_urgent=False, trace=current_trace())
        inbound.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._put(inbound)

    def _turn_away(self) -> None:
        self._is_stopping, self.is_running = True, False
        if "ready" in self.__dict__:
            self.ready.clear()
        for inbound in self._inbox.empty():
            inbound.done.set_exception(GiveBack("the worker stopped before a handler took the packet"))

    async def _finish(self, handlers: list[asyncio.Task[None]]) -> None:
        if not handlers:
            return
        _, late = await asyncio.wait(handlers, timeout=self._settings.drain_timeout.total_seconds())
        await cancelled(*late)

    async def _confirm_receipts(self) -> None:
        try:
            async with asyncio.timeout(self._settings.drain_timeout.total_seconds()):
                await (self._outbox.drained() if self._host is None else self._outbox.confirmed())
        except TimeoutError:
            _log.warning("receipts_unconfirmed", agent_id=self._agent.agent_id)
            self._intake.give_back(GiveBack("the receipts of the packet are not confirmed"))


def _effect_maker(store: EffectStore, agent_id: str, settings: WorkerSettings) -> EffectMaker:
    return EffectMaker(
        store,
        agent_id,
        lease=settings.effect_lease,
        poll=settings.effect_poll,
        retention=settings.effect_retention,
    )


def _signer(settings: WorkerSettings, agent_id: str) -> Sign | None:
    if settings.agent_key is None and settings.agent_key_file is None:
        return None
    from apc_agents.keys import find_key  # late: cryptography is slow to import, and few agents sign

    key = find_key(settings, agent_id)
    return key.sign if key is not None else None


def _ignore(error: BaseException) -> None:
    """Take no notice: the worker is being drained."""


async def _end_of(ended: asyncio.Future[None]) -> None:
    await ended


def _ended(error: Exception | None) -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
    return done
