"""Handmade packets: a cast of four agents in one session."""

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from apc_contracts.identity.ids import new_packet_id
from apc_contracts.packet import PACKET_TYPES, TYPE_OF_PAYLOAD, Actor, Packet, Recipient, Routing, Trace
from apc_contracts.payloads.by_type import ExpectedImpact, IdeaPayload, Payload, SignalPayload
from apc_contracts.payloads.session_signals import SessionSpec, SwarmSpec
from apc_contracts.vocabulary import ORCHESTRATOR, PROTOCOL_VERSION, Channel, DeliveryMode, RunPhase, Signal

Cast = Mapping[str, tuple[str, tuple[str, ...]]]
"""agent_id -> its swarm and its rights."""

SESSION = "s-1"
RUN = "run-1"
ROLE = "role"
_numbers = itertools.count()
AGENTS: Cast = {
    "librarian": ("library", ("operate",)),
    "red-1": ("red", ()),
    "blue-1": ("blue", ()),
    "sentinel": ("watch", ("veto", "validate")),
}


def make_packet(
    agent: str,
    payload: Payload,
    to: Sequence[str] = (ORCHESTRATOR,),
    *,
    cast: Cast = AGENTS,
    parent: Packet | None = None,
    **fields: Any,
) -> Packet:
    """Return a packet of an agent of the cast, unchecked by any policy.

    `fields` override the defaults: `version`, `phase`, `generation`, `session_id`, `mode`, `ttl_ms`, `keys`,
    `requires_ack`, `ack_timeout_ms`, `retry_limit`, or any field of the packet itself.
    """
    packet_type = TYPE_OF_PAYLOAD[type(payload)]
    packet_id = fields.pop("packet_id", None) or new_packet_id()
    mode = fields.pop("mode", DeliveryMode.DIRECT if len(to) == 1 else DeliveryMode.MULTICAST)
    trace = Trace(
        session_id=fields.pop("session_id", SESSION),
        run_id=RUN,
        task_id="task-1",
        root_packet_id=parent.trace.root_packet_id if parent else packet_id,
        parent_packet_id=parent.packet_id if parent else None,
        generation=fields.pop("generation", 0),
        step=0,
    )
    routing = Routing(
        delivery_mode=mode,
        priority=fields.pop("priority", 4),
        ttl_ms=fields.pop("ttl_ms", 3_600_000),
        requires_ack=fields.pop("requires_ack", False),
        ack_timeout_ms=fields.pop("ack_timeout_ms", None),
        retry_limit=fields.pop("retry_limit", None),
    )
    return PACKET_TYPES[packet_type](
        protocol_version=fields.pop("version", PROTOCOL_VERSION),
        packet_id=packet_id,
        packet_type=packet_type,
        channel=Channel.INTER_AGENT,
        run_phase=fields.pop("phase", RunPhase.RESEARCH),
        created_at=fields.pop("created_at", datetime.now(UTC)),
        sender=Actor(agent_id=agent, role=ROLE, swarm_id=cast[agent][0]),
        recipients=tuple(Recipient(agent_id=one) for one in to),
        trace=trace,
        routing=routing,
        confidence=0.5,
        symbolic_keys=fields.pop("keys", ()),
        payload=payload,
        **fields,
    )


def make_start(session_id: str = SESSION, *, cast: Cast = AGENTS, **spec: Any) -> Packet:
    """Return START of a session with the swarms red and blue; `spec` overrides fields of its SessionSpec."""
    fields: dict[str, Any] = {
        "swarms": (
            SwarmSpec(swarm_id="red", agents=("red-1",)),
            SwarmSpec(swarm_id="blue", agents=("blue-1",)),
        ),
        "members": ("sentinel",),
        "task_ids": ("task-1",),
        "generation_limit": 1,
        "generation_deadline_ms": 600_000,
        "state_deadline_ms": 600_000,
    } | spec
    payload = SignalPayload(signal=Signal.START, session=SessionSpec(**fields))
    return make_packet("librarian", payload, cast=cast, session_id=session_id)


def make_idea(intent: str = "intent") -> IdeaPayload:
    """Return an IDEA that every research phase accepts; no two are equal, because the gate refuses repetition."""
    return IdeaPayload(
        method_id=f"method-{next(_numbers)}",
        intent=intent,
        assumptions=(),
        required_capabilities=(),
        expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
        failure_modes=(),
    )
