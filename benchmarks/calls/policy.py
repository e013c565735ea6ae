"""Judging alone, in this process: admit() on a typical packet with a registry and a session, and parsing before it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from apc_contracts import admit, load_contract, seal
from apc_contracts.identity.registry import Registration
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.payloads.session_signals import SwarmSpec
from apc_contracts.session.advance import advance
from apc_contracts.session.movement import PacketInput
from apc_contracts.session.opening import open_session
from apc_contracts.session.session import Session
from apc_contracts.wire.parsing import ReceivedPacket, read_packet
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures

SESSION = "policy"
ADMIT_BAR, PARSE_BAR = 50_000, 20_000
ROUNDS = 400
CALLS = 100


def measure_policy(figures: Figures) -> None:
    """Both figures; the best of many short rounds, because whatever disturbs a loop only makes it slower."""
    contract = load_contract()
    registry = {one.agent_id: one.registration("guest") for one in (agents.source, agents.sink)}
    session = _session()
    packet = packets.typical_packet(SESSION, agents.source.actor, [agents.sink.agent_id])
    body = seal(packet).body
    facts = _facts(registry, read_packet(body))

    def judge() -> None:
        admit(packet, session, facts, contract)

    def parse_and_judge() -> None:
        # The facts are those of the message around the packet: the same each time.
        admit(read_packet(body).packet, session, facts, contract)

    verdict = admit(packet, session, facts, contract)
    if verdict.kind is not VerdictKind.ACCEPTED:
        raise RuntimeError(f"the typical packet is not accepted: {verdict}")
    note = f"fixed bar; {len(body)} bytes"
    figures.add(
        Figure("admit", _rate(judge), "packets/s/core", ADMIT_BAR, 1.0, note="fixed bar"),
        Figure("parse_and_admit", _rate(parse_and_judge), "packets/s/core", PARSE_BAR, 1.0, note=note),
    )


def _session() -> Session:
    """Return a session as the orchestrator has it after its START."""
    contract, now = load_contract(), datetime.now(UTC)
    swarm = SwarmSpec(swarm_id=agents.SWARM, agents=(agents.source.agent_id, agents.sink.agent_id))
    start: Packet = packets.start_packet(SESSION, agents.source.actor, [swarm])
    session = open_session(start, now, contract)
    received = read_packet(seal(start).body)
    verdict = admit(start, None, Facts(now=now), contract)
    advance(session, PacketInput(received, verdict, ("orchestrator",), None, now), contract)
    return session


def _facts(registry: dict[str, Registration], received: ReceivedPacket) -> Facts:
    return Facts(
        now=received.packet.created_at,
        registry=registry,
        user_id="guest",
        packet_hash=received.packet_hash,
        payload_hash=received.payload_hash,
        outstanding={agents.sink.agent_id: 500},
        outstanding_bound=1000,
    )


def _rate(action: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            action()
        best = min(best, time.perf_counter() - began)
    return CALLS / best
