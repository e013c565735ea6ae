"""A MESSAGE against a CLAIM, in this process: what parsing and judging typed content adds, in one session of `task`."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from apc_contracts import ClaimPayload, SignalPayload, admit, seal
from apc_contracts.contract.contract import task_contract
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import MessagePayload
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.schemas import register_schema
from apc_contracts.session.advance import advance
from apc_contracts.session.movement import PacketInput
from apc_contracts.session.opening import open_session
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import PacketType, RunPhase, Signal
from apc_contracts.wire.parsing import read_packet
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures

SESSION = "messages"
COST_BAR = 1.2
ROUNDS = 400
CALLS = 100


class Finding(BaseModel):
    """Ten fields, as the findings of a code review have them."""

    file: str = Field(min_length=1, max_length=255)
    line: int = Field(ge=1)
    severity: Literal["low", "medium", "high"]
    rule: str
    text: str = Field(max_length=2_000)
    confidence: float = Field(ge=0, le=1)
    is_blocking: bool
    tags: list[str]
    suggestion: str | None
    reviewer: str


def measure_messages(figures: Figures) -> None:
    """Measure both in turn: whatever disturbs this process makes both slower."""
    schema = register_schema("finding/1", Finding.model_json_schema(mode="serialization"))
    text = "The query is built from the request: use a parameter."
    content = Finding(
        file="shop/orders.py",
        line=42,
        severity="high",
        rule="sql-injection",
        text=text,
        confidence=0.9,
        is_blocking=True,
        tags=["security", "database"],
        suggestion="cursor.execute(query, (order_id,))",
        reviewer="reviewer-2",
    )
    claim = ClaimPayload(claim_id="c-1", hypothesis_id="h-1", text=text, confidence_pre=0.5, confidence_post=0.9)
    message = MessagePayload(schema_id="finding/1", content=content.model_dump())
    session = _session()
    judge_claim = _judging(claim, session, {})
    judge_message = _judging(message, session, {"finding/1": schema})
    claims, messages = _best_of_both(judge_claim, judge_message)
    note = f"one CLAIM takes {claims * 1e6:.0f} µs"
    figures.add(Figure("message_to_claim", messages / claims, "x", 1.0, COST_BAR, is_time=True, note=note))


def _session() -> Session:
    """Return a session as the orchestrator has it after its START."""
    contract, now = task_contract(), datetime.now(UTC)
    spec = TaskSessionSpec(contract="task", members=(agents.source.agent_id, agents.sink.agent_id))
    start = _packet(SignalPayload(signal=Signal.START, session=spec), "orchestrator")
    session = open_session(start, now, contract)
    verdict = admit(start, None, Facts(now=now), contract)
    advance(session, PacketInput(read_packet(seal(start).body), verdict, ("orchestrator",), None, now), contract)
    return session


def _packet(payload: Any, recipient: str) -> Packet:
    return packets.packet_of(
        SESSION, agents.source.actor, [recipient], payload, version="apc/1.1", run_phase=RunPhase.EXECUTION
    )


def _judging(payload: Any, session: Session, schemas: dict[str, Any]) -> Callable[[], None]:
    contract = task_contract()
    registry = {one.agent_id: one.registration("guest") for one in (agents.source, agents.sink)}
    registry = {
        name: replace(one, handles=frozenset(PacketType), schemas=frozenset(schemas)) for name, one in registry.items()
    }
    body = seal(_packet(payload, agents.sink.agent_id)).body
    received = read_packet(body)
    facts = Facts(
        now=received.packet.created_at,
        registry=registry,
        user_id="guest",
        packet_hash=received.packet_hash,
        payload_hash=received.payload_hash,
        schemas=schemas,
        outstanding={agents.sink.agent_id: 500},
        outstanding_bound=1000,
    )

    def judge() -> None:
        admit(read_packet(body).packet, session, facts, contract)

    verdict = admit(received.packet, session, facts, contract)
    if verdict.kind is not VerdictKind.ACCEPTED:
        raise RuntimeError(f"the packet is not accepted: {verdict}")
    return judge


def _best_of_both(one: Callable[[], None], other: Callable[[], None]) -> tuple[float, float]:
    """Return the CPU seconds a call of each, the best of many short rounds in turn."""
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for place, action in enumerate((one, other)):
            began = time.process_time()
            for _ in range(CALLS):
                action()
            best[place] = min(best[place], (time.process_time() - began) / CALLS)
    return best[0], best[1]
