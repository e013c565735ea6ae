"""Who takes part, the sessions they work in, and what the senders say."""

import random
from collections.abc import Sequence
from typing import Any

from tests.support.traffic import Cast, make_packet, make_start

from apc_contracts import IdeaPayload, Packet
from apc_contracts.payloads.by_type import ExpectedImpact
from apc_contracts.payloads.session_signals import SwarmSpec

OPERATOR = "librarian"
SENDERS = ("sender-1", "sender-2")
WORKERS = ("worker-1", "worker-2", "worker-3")
COLLECTOR = "collector"
CAST: Cast = {
    OPERATOR: ("library", ("operate",)),
    **{sender: ("senders", ()) for sender in SENDERS},
    **{worker: ("workers", ()) for worker in WORKERS},
    COLLECTOR: ("watch", ()),
}
POISON = "poison"
DAY_MS = 86_400_000
PACKETS_A_SESSION = 150
"""That one sender sends in a session before it goes on to the next one."""


def openings(count: int) -> list[Packet]:
    """Return the START of each session; none of them has a deadline within the soak."""
    swarms = tuple(SwarmSpec(swarm_id=swarm, agents=agents) for swarm, agents in _SWARMS)
    bounds = {"generation_deadline_ms": DAY_MS, "state_deadline_ms": DAY_MS}
    return [
        make_start(f"soak-{number}", cast=CAST, swarms=swarms, members=(COLLECTOR,), **bounds)
        for number in range(count)
    ]


def next_packet(sender: str, number: int, sessions: Sequence[Packet], chance: random.Random) -> Packet:
    """Most go to a worker or to all of them; some to nobody, some fail in the handler, some expire soon."""
    opening = sessions[number // PACKETS_A_SESSION % len(sessions)]
    kind = chance.random()
    to: tuple[str, ...] = (chance.choice(WORKERS),)
    fields: dict[str, Any] = {}
    if kind < 0.10:
        to = WORKERS
    elif kind < 0.14:
        to = ("nobody",)
    elif kind < 0.18:
        fields = {"ttl_ms": 1500}
    intent = POISON if 0.18 <= kind < 0.21 else "work"
    payload = idea(f"{sender}-{number}-{chance.getrandbits(64):x}", intent)
    return make_packet(sender, payload, to, cast=CAST, parent=opening, session_id=opening.trace.session_id, **fields)


def idea(method_id: str, intent: str) -> IdeaPayload:
    """Return an IDEA; who says the same twice is refused, so its id has to be new."""
    return IdeaPayload(
        method_id=method_id,
        intent=intent,
        assumptions=(),
        required_capabilities=(),
        expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
        failure_modes=(),
    )


_SWARMS = (("senders", SENDERS), ("workers", WORKERS))
