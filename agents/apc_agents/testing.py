"""Testing an agent in three lines and without a broker: the worker's real code over the in-process bus."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack
from uuid import UUID

import orjson
from pydantic import BaseModel

from apc_agents.agent import Agent
from apc_agents.effects import InMemoryEffectStore
from apc_agents.emission import Builder, Draft, LocalTransition, PacketOptions
from apc_agents.emitter import ClaimChecks, sealed_to_fit
from apc_agents.errors import AgentError, HandlerFailed
from apc_agents.handling.state import Documents, InMemoryStateStore, StateStore
from apc_agents.ports import BaseMemoryStore, find_mind, without_mind
from apc_agents.running.delivery import DeliveryKey, KnownSessions, SessionPosition
from apc_agents.running.worker import Worker
from apc_agents.scheduling import Tick, tick_id
from apc_agents.task_port import TaskStore
from apc_bus import headers
from apc_bus.artifacts import ArtifactStore
from apc_bus.consuming import handle
from apc_bus.in_memory import InMemoryBroker
from apc_bus.port import Delivery, HeaderValue, Message, Publication
from apc_bus.settings import WorkerSettings
from apc_bus.topology import INGRESS, INTER_AGENT, build_topology, gate_queue, is_urgent, routing_key
from apc_contracts.contract.contract import Contract, load_contract, task_contract
from apc_contracts.identity.ids import ACCEPTANCE_ORDINAL, reply_id
from apc_contracts.packet import Actor, Packet
from apc_contracts.payloads.by_type import AckPayload, Payload
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR, AckStatus, PacketType, Right, RunPhase
from apc_contracts.wire.parsing import parse_packet, seal
from apc_contracts.wire.receipts import Receipt, ReceiptKind, parse_receipts, steps_of

PATIENCE = timedelta(seconds=30)
_MARKER = "marker"
"""AMQP type of a message that the client sends to itself behind what was emitted before."""
END_KINDS = frozenset({ReceiptKind.OUTCOME, ReceiptKind.REJECT, ReceiptKind.RETRY, ReceiptKind.EXPIRED})


class AgentTestClient:
    """Hands packets to an agent as the orchestrator would, and shows what it emits.

    ```python
    @desk.on(Question)
    async def reply(question: Question, ctx: HandlerContext) -> Answer:
        ctx.state["asked"] = ctx.state.get("asked", 0) + 1
        return Answer(text="because")


    async with AgentTestClient(desk) as client:
        reply = await client.send(Question(text="why"), sender="ida", session_id="session-7")
        assert content_of(reply, Answer) == Answer(text="because")
        assert [packet.packet_type for packet in client.emitted] == ["MESSAGE"]
        assert await client.state("session-7") == {"asked": 1}
    async with AgentTestClient(desk, states=client.states, memory=client.memory) as restarted:
        await restarted.send(Question(text="and"), session_id="session-7")
        assert await restarted.state("session-7") == {"asked": 2}
    ```
    There is no orchestrator: no session, no registry; what `apc packet validate` refuses is refused, sent or emitted.
    An agent that takes MESSAGEs is judged by the contract `task`, any other by `apc/1.0`, unless `contract` says
    otherwise: a contract, or its file. ctx.state, ctx.once, ctx.artifacts, ctx.memory and tasks are in memory.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        contract: Contract | Path | str | None = None,
        artifacts: ArtifactStore | None = None,
        memory: BaseMemoryStore | None = None,
        states: StateStore | None = None,
    ) -> None:
        """Make a client of one agent; for a restart give a second one the `memory` and the `states` of the first.

        Args:
            agent: the agent.
            contract: the contract, or its file; default as above.
            artifacts: what the agent has as ctx.artifacts; default a store in RAM.
            memory: what it has as ctx.memory; default one in RAM.
            states: where ctx.state is kept; default in RAM.

        Raises:
            ContractInvalid: the file of the contract cannot be read or used; names the place.
        """
        self.emitted: list[Packet] = []
        """What the agent has emitted, in order, heartbeats aside."""
        self.receipts: list[Receipt] = []
        """What the worker has reported, in order."""
        self.invocations: dict[UUID, list[tuple[LocalTransition, ...]]] = {}
        """The steps of intra_agent_coordination of each run of a handler that emitted something, by packet_id."""
        self.artifacts = artifacts or ArtifactStore("memory:///")
        mind = find_mind()
        self._memory = memory or (None if mind is None else mind.memory_store())
        self.states = states or InMemoryStateStore(self._memory if isinstance(self._memory, Documents) else None)
        """Where ctx.state is kept."""
        self._tasks = None if mind is None else mind.task_store(agent.agent_id)
        self.effects = InMemoryEffectStore()
        """What ctx.once has made."""
        self._claim_checks = ClaimChecks(self.artifacts, WorkerSettings(database_url=None).claim_check_bytes)
        self._agent = agent
        if contract is None:
            contract = task_contract() if self._takes_messages else load_contract()
        self._contract = contract if isinstance(contract, Contract) else load_contract(contract)
        self._ends: dict[DeliveryKey, asyncio.Future[None]] = {}
        self._causes: dict[UUID, list[Packet]] = {}
        self._stop = asyncio.Event()
        self._passed = asyncio.Event()
        self._batch_no = 0
        self._stack = AsyncExitStack()

    @property
    def memory(self) -> BaseMemoryStore:
        """What the agent has as ctx.memory. Raises AgentError where no mind is installed."""
        if self._memory is None:
            raise without_mind("client.memory")
        return self._memory

    @property
    def tasks(self) -> TaskStore:
        """The agent's tasks, when it has tools. Raises AgentError where no mind is installed."""
        if self._tasks is None:
            raise without_mind("client.tasks")
        return self._tasks

    async def __aenter__(self) -> Self:
        """Start the worker; returns when its on_start functions are done. Raises what they raised."""
        agent = self._agent
        broker = InMemoryBroker(build_topology(1, [agent.queues()]))
        self._gate = broker.connect("orchestrator")
        await self._stack.enter_async_context(handle(self._gate, gate_queue(0), self._collect, prefetch=1))
        worker = Worker(
            agent,
            broker.connect(agent.queues().user),
            settings=WorkerSettings(shards=1, database_url=None),
            states=self.states,
            tasks=self._tasks,
            memory=self._memory,
            effects=self.effects,
            artifacts=self.artifacts,
            contract=self._contract,
            on_failure=self._fail,
            on_invocation=self._note_invocation,
        )
        self._running = asyncio.create_task(worker.run(self._stop))
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait((self._running, ready), return_when=asyncio.FIRST_COMPLETED)
        if self._running.done():
            ready.cancel()
            await self._stack.aclose()
            await self._running
        await self.settled()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the worker as SIGTERM does."""
        self._stop.set()
        await self._running
        await self._stack.aclose()
        await self._gate.close()

    async def send(
        self,
        payload: Payload | BaseModel,
        *,
        sender: str | Actor = "tester",
        phase: RunPhase | None = None,
        round: int = 0,
        step: int = 0,
        rights: Iterable[Right] = (),
        **options: Unpack[PacketOptions],
    ) -> Packet | None:
        """Send a packet to the agent; returns the first packet that it emitted in answer, None when it did not.

        Args:
            payload: a payload, or a model with `@message`.
            sender: the agent_id or the whole Actor that it comes from.
            phase: the session's; default DISCOVERY, EXECUTION for an agent that takes MESSAGEs.
            round: the session's.
            step: the session's.
            rights: those that the orchestrator would know the sender to have.
            options: those of `ctx.emit`, for session-1, run-1 and task-1 unless they say otherwise.

        Raises:
            EmitRefused: the contract refuses the packet.
            HandlerFailed: the handler raised; `__cause__` is what it raised.
        """
        options = {"session_id": "session-1", "run_id": "run-1", "task_id": "task-1", "generation": 0, **options}
        phase = phase or (RunPhase.EXECUTION if self._takes_messages else RunPhase.DISCOVERY)
        draft = Draft(payload, to=self._agent.agent_id, run_phase=phase, **options)
        actor = Actor(agent_id=sender, role="tester", swarm_id="tests") if isinstance(sender, str) else sender
        packet = Builder(actor, KnownSessions(actor.agent_id)).build(draft, None, 0).packet
        answers = await self.deliver(
            packet, SessionPosition(step, phase, round, options.get("generation") or 0), rights=rights
        )
        return answers[0] if answers else None

    async def tick(self, name: str, instant: datetime | None = None) -> Packet | None:
        """Deliver the Tick of a schedule of the agent, as `send`. Schedules do not run by the clock here.

        ```python
        @desk.every("0 7 * * 1-5")
        async def morning(tick: Tick, ctx: HandlerContext) -> None:
            await ctx.complete(Answer(text=f"{tick.name} of {tick.instant:%d %B}"))


        async with AgentTestClient(desk) as client:
            done = await client.tick("morning", datetime(2026, 11, 27, 7, tzinfo=UTC))
        assert done.payload.result.content == {"text": "morning of 27 November"}
        ```

        Args:
            name: of the schedule, by default that of the decorated function.
            instant: when it was due; default now.

        Raises:
            AgentError: the agent has no such schedule.
        """
        agent = self._agent
        tick = Tick(name=agent.schedule(name).name, instant=instant or datetime.now(UTC))
        return await self.send(tick, sender=agent.actor, packet_id=tick_id(agent.agent_id, tick))

    async def deliver(
        self, packet: Packet, moment: SessionPosition | None = None, *, attempt: int = 1, rights: Iterable[Right] = ()
    ) -> tuple[Packet, ...]:
        """Deliver a packet; return everything that the agent emitted for it. Raises as `send`.

        Args:
            packet: as it would come from the inbox.
            moment: step, phase, round and generation of the session; default those of the packet.
            attempt: which delivery of the packet this is, from 1.
            rights: as `send`.
        """
        sealed = await sealed_to_fit(packet, self._contract, self._claim_checks)
        agent = self._agent
        if packet.packet_type not in agent.handles | CONTROL_TYPES:
            raise AgentError(f"agent {agent.agent_id} does not take {packet.packet_type}: the gate would refuse it")
        key = (packet.packet_id, attempt)
        end = self._ends[key] = asyncio.get_running_loop().create_future()
        moment = moment or SessionPosition(run_phase=packet.run_phase, generation=packet.trace.generation)
        await self._hand_over(packet, moment, sealed.body, attempt, rights)
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                await end
        except TimeoutError:
            raise AgentError(f"the agent has not ended packet {packet.packet_id}") from None
        finally:
            del self._ends[key]
        return tuple(self._causes.get(packet.packet_id, ()))

    async def _hand_over(
        self, packet: Packet, moment: SessionPosition, body: bytes, attempt: int = 1, rights: Iterable[Right] = ()
    ) -> None:
        agent, urgent = self._agent, is_urgent(packet.packet_type, packet.routing.priority)
        message = Message(
            body,
            message_id=str(packet.packet_id),
            type=packet.packet_type.value,
            headers=self._headers(moment, attempt, rights),
        )
        word = routing_key(packet.packet_type, agent.swarm, agent.agent_id, urgent)
        await self._gate.publish(Publication(INTER_AGENT, word, message))

    async def settled(self) -> None:
        """Wait until everything that was emitted so far is in `emitted`."""
        passed = self._passed = asyncio.Event()
        await self._gate.publish(Publication(INGRESS, "0", Message(b"", message_id="", type=_MARKER)))
        await passed.wait()

    async def state(self, session_id: str = "session-1") -> dict[str, Any]:
        """Return the saved ctx.state of the session `session_id`; empty when there is none."""
        stored = await self.states.load(self._agent.agent_id, session_id)
        return {} if stored is None else dict(orjson.loads(stored[0])["state"])

    @property
    def _takes_messages(self) -> bool:
        return PacketType.MESSAGE in self._agent.handles

    def _headers(self, moment: SessionPosition, attempt: int, rights: Iterable[Right]) -> dict[str, HeaderValue]:
        self._batch_no += 1
        return {
            headers.SHARD: 0,
            headers.EPOCH: 1,
            headers.BATCH: self._batch_no,
            headers.MARK: "0.0",
            headers.ATTEMPT: attempt,
            headers.STATE_STEP: moment.step,
            headers.PHASE: moment.run_phase.value,
            headers.ROUND: moment.round,
            headers.GENERATION: moment.generation,
            headers.RIGHTS: ",".join(sorted(rights)),
        }

    async def _collect(self, delivery: Delivery) -> None:
        message = delivery.message
        if message.type == _MARKER:
            return self._passed.set()
        if message.type == headers.TYPE_RECEIPTS:
            return self._take_receipts(message.body)
        self._take_receipts(str(message.headers.get(headers.RECEIPTS, "[]")).encode())
        if headers.ASKS_VERDICT in message.headers:
            return await self._accept(parse_packet(message.body))
        packet = await self._claim_checks.redeem(parse_packet(message.body))
        if packet.packet_type is PacketType.HEARTBEAT:
            return
        self.emitted.append(packet)
        if headers.CAUSE in message.headers:
            self._causes.setdefault(UUID(str(message.headers[headers.CAUSE])), []).append(packet)

    async def _accept(self, packet: Packet) -> None:
        """Answer an agent that waits for the verdict on its packet: it is accepted."""
        actor = Actor(agent_id=ORCHESTRATOR, role=ORCHESTRATOR, swarm_id=ORCHESTRATOR)
        answer_id = reply_id(packet.packet_id, ORCHESTRATOR, ACCEPTANCE_ORDINAL)
        payload = AckPayload(acked_packet_id=packet.packet_id, ack_status=AckStatus.ACCEPTED)
        trace = packet.trace
        draft = Draft(
            payload,
            to=self._agent.agent_id,
            parent=packet,
            packet_id=answer_id,
            run_phase=packet.run_phase,
            session_id=trace.session_id,
            run_id=trace.run_id,
            task_id=trace.task_id,
            generation=trace.generation,
        )
        answer = Builder(actor, KnownSessions(ORCHESTRATOR)).build(draft, None, 0).packet
        await self._hand_over(answer, SessionPosition(run_phase=packet.run_phase), seal(answer).body)

    def _take_receipts(self, body: bytes) -> None:
        for receipt in chain.from_iterable(map(steps_of, parse_receipts(body))):
            self.receipts.append(receipt)
            end = self._ends.get((receipt.packet_id, receipt.attempt))
            if receipt.kind in END_KINDS and end is not None and not end.done():
                end.set_result(None)

    def _fail(self, packet: Packet, attempt: int, failure: Exception) -> None:
        end = self._ends.get((packet.packet_id, attempt))
        if end is not None and not end.done():
            failed = HandlerFailed(f"the handler of {packet.packet_type} raised {type(failure).__name__}")
            failed.__cause__ = failure
            end.set_exception(failed)

    def _note_invocation(self, packet: Packet, transitions: tuple[LocalTransition, ...]) -> None:
        self.invocations.setdefault(packet.packet_id, []).append(transitions)
