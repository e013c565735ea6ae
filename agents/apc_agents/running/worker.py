"""A worker: one agent at one bus. Takes packets from its two queues, handles them, reports what became of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
import structlog
from structlog.contextvars import bound_contextvars

from apc_agents.agent import Agent
from apc_agents.effect_maker import EffectMaker
from apc_agents.effects import EffectStore, InMemoryEffectStore
from apc_agents.emission import Builder, Draft
from apc_agents.emitter import Acknowledgements, ClaimChecks, Emitter, Sign
from apc_agents.errors import EmitError
from apc_agents.handling.delivery_end import FailureListener
from apc_agents.handling.dispatch import Dispatcher, InvocationListener
from apc_agents.handling.invocation import Resources
from apc_agents.handling.state import InMemoryStateStore, StateCache, StateStore
from apc_agents.memory.in_memory import InMemoryMemoryStore
from apc_agents.memory.store import BaseMemoryStore
from apc_agents.outbox import ReceiptOutbox
from apc_agents.running.delivery import Inbound, KnownSessions
from apc_agents.running.intake import Inbox, Intake, SubstrateListener
from apc_agents.scheduling import ScheduleRunner, ScheduleStore, Tick, fire_with
from apc_agents.tasks.in_memory import InMemoryTaskStore
from apc_agents.tasks.runner import TaskRunner, announce_with
from apc_agents.tasks.store import TaskStore
from apc_bus.artifacts import ArtifactStore
from apc_bus.concurrency import Health, cancelled, first_of, keep_running, running
from apc_bus.consuming import Consumer, Take, consume
from apc_bus.database import problems_of
from apc_bus.errors import DeadLetter, GiveBack, TaskEnded
from apc_bus.last_resort import LastResort
from apc_bus.port import Bus, Delivery
from apc_bus.settings import WorkerSettings
from apc_bus.telemetry import current_trace, leave_locals_out
from apc_bus.topology import INTER_AGENT, agent_queue
from apc_contracts.contract.contract import Contract, load_contract
from apc_contracts.identity.ids import shard_of
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import HeartbeatPayload
from apc_contracts.vocabulary import ORCHESTRATOR, PRESENCE_SESSION, Signal

# Says that an agent lives: at start, and after a time without any emit.

PRESENCE_TASK = "presence"
"""run_id and task_id of a HEARTBEAT."""

_log = structlog.get_logger("apc_agents")


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
    ) -> None:
        settings = settings or WorkerSettings()
        self._agent, self._bus, self._settings = agent, bus, settings
        self._schedules, self._database = schedules, database
        self._sessions = sessions = KnownSessions(agent.agent_id)
        contract, acknowledgements = contract or load_contract(settings.contract), Acknowledgements()
        claim_checks = ClaimChecks(artifacts, settings.claim_check_bytes)
        self._outbox = ReceiptOutbox(bus, settings.receipt_linger, settings.outcome_linger)
        self._emitter = self._make_emitter(acknowledgements, contract, claim_checks, sign)
        self._states = StateCache(states or InMemoryStateStore(), agent.agent_id)
        self._intake, self._inbox = Intake(agent.agent_id, sessions, acknowledgements, settings.shards), Inbox()
        self._tasks = tasks or (InMemoryTaskStore() if agent.tools is not None else None)
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
        self.ready = asyncio.Event()
        """Set while handlers run: after on_start, until the worker stops."""

    def _make_resources(self, memory: BaseMemoryStore | None, artifacts: ArtifactStore | None) -> Resources:
        return Resources(
            agent=self._agent,
            emitter=self._emitter,
            effects=self._effects,
            memory=memory or InMemoryMemoryStore(),
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
        idle = [] if self.ready.is_set() else [f"the handlers of {self._agent.agent_id} do not run"]
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
        leave_locals_out()
        with bound_contextvars(agent_id=self._agent.agent_id):
            async with running(self._outbox.run()) as outbox, self._queues():
                await self._serve(stop, outbox)

    async def _serve(self, stop: asyncio.Event, outbox: asyncio.Task[None]) -> None:
        settings, agent = self._settings, self._agent
        beats = self._keep(
            "the heartbeat", lambda: send_heartbeats(self._emitter, agent.agent_id, settings.heartbeat_silence), stop
        )
        handlers: list[asyncio.Task[None]] = []
        try:
            async with running(beats):
                for starter in agent.starters:
                    await self._dispatcher.start(starter, PRESENCE_SESSION)
                handlers = [asyncio.create_task(self._handle_next()) for _ in range(agent.concurrency)]
                self.ready.set()
                _log.info("worker_started", agent_id=agent.agent_id, handles=sorted(agent.handles))
                await first_of(stop.wait(), outbox, *handlers, *self._runners(stop), *self._listeners(stop))
                if not stop.is_set():
                    raise TaskEnded(f"a task of the worker {agent.agent_id} has ended without having been told to stop")
        finally:
            self._turn_away()
            await self._finish(handlers)
            await self._confirm_receipts()
            _log.info("worker_stopped", agent_id=agent.agent_id)

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

    def _runners(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """Return what forgets old records, and runs the schedules of an agent and the tasks of one with tools."""
        agent_id, schedules, store = self._agent.agent_id, self._agent.schedules, self._schedules
        forget = partial(self._states.forget_answers, self._settings.effect_retention)
        runs = [self._keep("the purge of effects", self._effects.purge, stop)]
        runs.append(self._keep("the purge of answers", forget, stop))
        if schedules and store is not None:
            firing = ScheduleRunner(agent_id, schedules, store, fire_with(self._emitter, agent_id))
            runs.append(self._keep("the schedules", firing.run, stop))
        tools, tasks, settings = self._agent.tools, self._tasks, self._settings
        if tools is None or tasks is None:
            return runs
        runner = TaskRunner(
            agent_id,
            tools,
            tasks,
            announce_with(self._emitter, agent_id),
            security_level=self._agent.security_level,
            concurrency=settings.task_concurrency,
            lease=settings.task_lease,
            poll=settings.task_poll,
        )
        return [*runs, self._keep("the runner of tasks", runner.run, stop)]

    def _listeners(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """Return what reads the substrate for an agent that listens."""
        if self._agent.substrate_handler is None:
            return []
        listener = SubstrateListener(
            self._bus,
            self._agent.agent_id,
            self._sessions,
            self._inbox.put,
            self._settings.shards,
            self._intake.time,
        )
        return [self._keep("the substrate", listener.run, stop)]

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
                take = self._with_middlewares(partial(self._take, is_urgent=is_urgent))
                consuming = consume(
                    self._bus,
                    queue,
                    take,
                    ahead,
                    grace=MIDDLEWARE_GRACE_SECONDS,
                    last_resort=self._last_resort,
                    one_at_a_time=not is_urgent,
                    tell=self._tell_set_aside,
                )
                self._consumers[is_urgent] = await stack.enter_async_context(consuming)
            yield

    async def _look_for_answers(self, packet: Packet) -> list[Packet]:
        """Return the answers that this or another process has taken, and let in those behind waiting handlers.

        An answer is control traffic. Ordinary packets stay at the broker: a crash would count against each of them.
        """
        await self._consumers[True].extend()
        return await self._states.load_answers(packet)

    def _with_middlewares(self, take: Take) -> Take:
        if not self._agent.middlewares:
            return take
        from apc_bus.rabbit.middlewares import with_middlewares  # late: FastStream takes half a second to import

        return with_middlewares(take, self._agent.middlewares, INTER_AGENT)

    def _take(self, delivery: Delivery, *, is_urgent: bool) -> asyncio.Future[None]:
        """Take a delivery; the future ends when it may be acknowledged, or with what happens to it instead."""
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
            self._inbox.put(inbound)
        return inbound.done

    def _tell_set_aside(self, delivery: Delivery, done: asyncio.Future[None], error: DeadLetter) -> None:
        """Report a delivery that ended its workers: no handler can, and the sender has to hear of it."""
        receipt = self._intake.set_aside(delivery)
        if receipt is not None:
            self._outbox.add(*receipt)
        self._outbox.settle(done, error)

    async def _handle_next(self) -> None:
        while (inbound := await self._inbox.get()) is not None:
            in_hand = (self._agent.agent_id, inbound.packet.packet_id)
            LastResort.in_hand.add(in_hand)
            try:
                if inbound.risk is None:
                    await self._dispatcher.process(inbound)
                else:
                    async with inbound.risk.taken():
                        await self._dispatcher.process(inbound)
            finally:
                LastResort.in_hand.discard(in_hand)
                self._inbox.release(inbound)

    def _deliver_locally(self, packet: Packet) -> None:
        """Take a packet between modules of this agent: handled here, logged by the orchestrator, without receipts."""
        shard = shard_of(packet.trace.session_id, self._settings.shards)
        inbound = Inbound(packet, 1, shard, has_receipts=False, is_urgent=False, trace=current_trace())
        inbound.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._inbox.put(inbound)

    def _turn_away(self) -> None:
        self._is_stopping = True
        self.ready.clear()
        for inbound in self._inbox.close():
            inbound.done.set_exception(GiveBack("the worker stopped before a handler took the packet"))

    async def _finish(self, handlers: list[asyncio.Task[None]]) -> None:
        if not handlers:
            return
        _, late = await asyncio.wait(handlers, timeout=self._settings.drain_timeout.total_seconds())
        await cancelled(*late)

    async def _confirm_receipts(self) -> None:
        try:
            async with asyncio.timeout(self._settings.drain_timeout.total_seconds()):
                await self._outbox.drained()
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


def _ended(error: Exception | None) -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
    return done
