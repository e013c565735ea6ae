"""A session that is loaded from the log is the session that was in memory, wherever a takeover interrupts it."""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from tests.contracts.session.conftest import HANDLED, Simulation
from tests.contracts.session.room import REGISTERED, Room, registry, rules
from tests.contracts.session.room_walk import RoomWalk, contract_with
from tests.contracts.session.walk import Walk

from apc_bus.database import open_pool
from apc_bus.port import Delivery, Message
from apc_bus.settings import PersisterSettings
from apc_bus.topology import RETRY
from apc_contracts import Packet, SignalPayload, load_contract, read_packet
from apc_contracts.contract.collection import Contracts
from apc_contracts.judging.session_view import Identity
from apc_contracts.judging.verdict import Verdict
from apc_contracts.limits import DEFAULT_LIMITS
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_contracts.schemas import RegisteredSchema
from apc_contracts.session.document import decode_document
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import ORCHESTRATOR, SUBSTRATE_RECIPIENT, Signal
from apc_contracts.wire.parsing import seal
from apc_contracts.wire.receipts import OPERATOR_KINDS, Receipt, ReceiptKind, encode_receipts
from apc_log.batch import LOG_BATCH_TYPE, EpochOpen, encode
from apc_log.body_encryption import KeyRing, MasterKey
from apc_log.session_loading import load_session
from apc_orchestrator.batch import Batch
from apc_orchestrator.errors import SessionUnloadable
from apc_orchestrator.judging.inputs import ORCHESTRATOR_KINDS, read_input
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.judging.memory import Sessions, ShardMemory
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.lease import Lease
from apc_orchestrator.shard.intake import LOADED_AT_ONCE, SessionLoader
from apc_persister.encryption import HIDDEN, Encryption
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.tree import TreeSigner
from apc_persister.intake import read_message
from apc_persister.transaction import commit
from apc_persister.writer import drop_connection, take_connection

CONTRACT = load_contract()
OPENING = UUID(int=1)


@dataclass
class JudgedSimulation(Simulation):
    """The simulation with the gate's own judge in the place of `admit` and `advance`, and its log batches kept."""

    batches: list[Batch] = field(default_factory=list)
    schemas: Mapping[str, RegisteredSchema] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sessions = Sessions()
        registry, protocols = (
            Registry(ORCHESTRATOR, self.registry, set(), self.schemas),
            ProtocolLedger(self.contract.effectiveness),
        )
        lease = Lease(0, 1, "0.0", ORCHESTRATOR, UUID(int=2))
        self.judge = Judge(
            ShardMemory(Contracts(self.contract), lease, 1, "operator", registry, protocols, self.sessions)
        )

    def take(self, packet: Packet) -> Any:
        batch = self._begin()
        if packet.sender.agent_id == ORCHESTRATOR:
            self.judge.judge_own(batch, packet)
        else:
            body, user = seal(packet).body, self.registry[packet.sender.agent_id].broker_user
            message = Message(body, str(packet.packet_id), type=packet.packet_type.value, user_id=user)
            self.judge.judge(batch, read_packet(body), message)
        self._finish(batch)
        identity = self.session.identity(packet.packet_id)
        assert identity is not None
        return Verdict(identity.verdict, identity.refusal)

    def receipts(
        self,
        packet: Packet,
        agent: str,
        attempt: int = 1,
        kinds: tuple[ReceiptKind, ...] | None = None,
        *,
        after_ms: int | None = None,
        error: str | None = None,
    ) -> None:
        for kind in kinds or HANDLED:
            receipt = Receipt(
                packet_id=packet.packet_id,
                session_id="s-1",
                recipient=agent,
                kind=kind,
                attempt=attempt,
                at=self.now,
                after_ms=after_ms,
                error=error,
            )
            own, operator = kind in ORCHESTRATOR_KINDS, kind in OPERATOR_KINDS
            user = ORCHESTRATOR if own else "agent.librarian" if operator else self.registry[agent].broker_user
            message = Message(encode_receipts([receipt]), "m", type="receipts", user_id=user)
            batch = self._begin()
            self.judge.take(batch, read_input(Delivery(message, 1, "0", False), DEFAULT_LIMITS), message)
            self._finish(batch)

    def confirm(self, packet: Packet) -> None:
        batch = self._begin()
        self.judge.confirm_substrate(batch, self.session, packet.packet_id)
        self._finish(batch)

    def _begin(self) -> Batch:
        return Batch(len(self.batches) + 1, self.now)

    def _finish(self, batch: Batch) -> None:
        self.opened = self.sessions.get("s-1")
        if batch.entries:
            self.batches.append(batch)
        for one in batch.outgoing:
            if one.packet_id is None:
                continue
            if one.publication.exchange == RETRY:
                self.put_off.append((self.session.open[one.packet_id].packet, one.recipient, one.attempt))
                continue
            packet = read_packet(one.publication.message.body).packet
            if one.recipient == SUBSTRATE_RECIPIENT:
                self.stream.append(packet)
            else:
                self.inboxes.setdefault(one.recipient, deque()).append((packet, one.attempt))
        for request in batch.verifications:
            self._verify(request.received.packet)


async def write(pool: asyncpg.Pool, bodies: list[bytes], encryption: Encryption | None = None) -> None:
    """Commit log batches as the writer does."""
    opening = encode(EpochOpen(1, 0, OPENING))
    messages = [Message(opening, "open", type="epoch_open")]
    messages += [Message(body, "batch", type=LOG_BATCH_TYPE) for body in bodies]
    received = [read_message(0, Delivery(message, 1, "0", False)) for message in messages]
    connection = await take_connection(pool, timedelta(seconds=5))
    try:
        await commit(connection, 0, received, TreeSigner(0, load_signer(PersisterSettings())), encryption)
    finally:
        await drop_connection(pool, connection)
    conflicts = await pool.fetch("SELECT kind, reason FROM apc_log.packet_conflicts WHERE kind <> 'security'")
    assert not [row for row in conflicts if row["kind"] not in ("refused", "rerun")], conflicts


def as_seen(session: Session) -> dict[str, Any]:
    """Everything that the future of a session depends on."""
    return {
        "document": decode_document(session.document.encode()),
        "identities": {key: as_document(one) for key, one in session.identities.items()},
        "open": {
            packet_id: (
                opened.round,
                opened.verification,
                opened.standing,
                opened.completion,
                opened.is_evidence_counted,
                {
                    name: (one.state, one.attempt, one.is_open, one.not_before)
                    for name, one in opened.recipients.items()
                },
            )
            for packet_id, opened in session.open.items()
        },
        "answer_schemas": session.answer_schemas,
        "held": [(packet_id, held.recipients, held.round, held.is_paused) for packet_id, held in session.held.items()],
        "claims": session.claims,
        "grounds": asdict(session.grounds),
        "outstanding": session.outstanding,
        "roots": session.roots,
        "keys": session.keys,
        "contents": list(session.contents.items()),
        "evidence": session.evidence,
        "tasks": session.tasks,
        "members": session.members,
        "approvals": {} if session.dossier is None else session.dossier.approvals,
        "counters": {} if session.dossier is None else session.dossier.counters,
    }


def as_document(identity: Identity) -> dict[str, Any]:
    refusal = None if identity.refusal is None else asdict(identity.refusal)
    return msgspec.structs.asdict(identity) | {"refusal": refusal}


def hide_late_refusals(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Where a held packet was refused at its barrier, the encrypted log keeps code and rule alone."""
    for key, identity in found["identities"].items():
        if identity["refusal"] is not None and identity["refusal"]["message"] == HIDDEN:
            for name in ("path", "message"):
                expected["identities"][key]["refusal"][name] = identity["refusal"][name]


@pytest.mark.parametrize(("seed", "is_encrypted"), [(1, False), (2, False), (3, True)])
async def test_what_rules_remember_is_loaded_too(postgres_url: str, seed: int, is_encrypted: bool) -> None:
    ring = KeyRing(MasterKey(bytes(32))) if is_encrypted else None
    encryption = None if ring is None else Encryption(ring, None)
    pool, random = await open_pool(postgres_url, max_size=2), Random(seed)
    try:
        contract = contract_with(random, rules=8)
        simulation = JudgedSimulation(contract, registry=registry(), schemas=REGISTERED)
        walk = RoomWalk(simulation, random)
        written = 0
        for step in range(60):
            walk.step()
            if step % 10:
                continue
            new = simulation.batches[written:]
            written += len(new)
            await write(pool, [encode(batch.seal(0, 1)) for batch in new], encryption)
            loaded = await load_session(pool, "s-1", Contracts(contract), ring)
            assert isinstance(loaded, Session)
            found, expected = as_seen(loaded), as_seen(simulation.session)
            for name, value in expected.items():
                assert found[name] == value, name
    finally:
        await pool.close()


async def test_an_approval_that_a_held_packet_used_up_stays_used(postgres_url: str) -> None:
    """The packet stands in the log before the answer that it used when the pause ended."""
    contract = rules('approved_by("lead")')
    room = Room(JudgedSimulation(contract, registry=registry(), schemas=REGISTERED))
    room.accept(room.send("desk", SignalPayload(signal=Signal.PAUSE), ORCHESTRATOR))
    room.action(risk="high")
    room.approved()
    room.simulation.now += timedelta(seconds=1)
    room.accept(room.send("desk", SignalPayload(signal=Signal.RESUME), ORCHESTRATOR))
    pool = await open_pool(postgres_url, max_size=2)
    try:
        assert isinstance(room.simulation, JudgedSimulation)
        await write(pool, [encode(batch.seal(0, 1)) for batch in room.simulation.batches])
        loaded = await load_session(pool, "s-1", Contracts(contract))
        assert isinstance(loaded, Session)
        ((approval,),) = as_seen(room.simulation.session)["approvals"].values()
        assert approval.used_by is not None
        assert as_seen(loaded)["approvals"] == as_seen(room.simulation.session)["approvals"]
    finally:
        await pool.close()


@pytest.mark.parametrize(("seed", "is_encrypted"), [*((seed, False) for seed in range(8)), (1, True), (5, True)])
async def test_what_is_loaded_is_what_was_in_memory(postgres_url: str, seed: int, is_encrypted: bool) -> None:
    ring = KeyRing(MasterKey(bytes(32))) if is_encrypted else None
    encryption = None if ring is None else Encryption(ring, None)
    pool = await open_pool(postgres_url, max_size=2)
    try:
        simulation = JudgedSimulation(CONTRACT)
        walk = Walk(simulation, seed)
        written = 0
        for step in range(60):
            walk.step()
            if step % 3:  # walk by walk the session is loaded at other moments
                continue
            new = simulation.batches[written:]
            written += len(new)
            await write(pool, [encode(batch.seal(0, 1)) for batch in new], encryption)
            loaded = await load_session(pool, "s-1", Contracts(CONTRACT), ring)
            assert isinstance(loaded, Session)
            found, expected = as_seen(loaded), as_seen(walk.session)
            if is_encrypted:
                hide_late_refusals(found, expected)
            for name, value in expected.items():
                assert found[name] == value, name
    finally:
        await pool.close()


class Barred(SessionLoader):
    """Reads a session only once as many are being read as are read at the same time; the one named `lost` cannot be."""

    def __init__(self) -> None:
        self.gate = asyncio.Barrier(LOADED_AT_ONCE)
        self.read: list[str] = []

    async def load(self, session_id: str) -> None:
        await self.gate.wait()
        if session_id == "lost":
            raise SessionUnloadable("session lost: the database is away")
        self.read.append(session_id)
        await asyncio.Event().wait() if session_id == "slow" else None


async def test_sessions_are_read_several_at_a_time_and_each_once() -> None:
    names = [f"s-{number}" for number in range(3 * LOADED_AT_ONCE)]
    loader = Barred()
    await loader.load_all(names)
    assert sorted(loader.read) == sorted(names)
    with pytest.raises(SessionUnloadable):
        await loader.load_all(["slow", "lost", "s-1", "s-2"])
    assert [task for task in asyncio.all_tasks() if "load_in_turn" in repr(task)] == []
