"""The lifecycle of a packet for one recipient: the names of its machine, its moves, its progress.

It is moved by a verdict (`verdicts`), by receipts (`receipts`), by a new attempt (`rerouting`), and, once it is
applied, by the gate itself (`completion`). Source: docs/specification/contract.md section 8.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from apc_contracts.contract.contract import Contract
from apc_contracts.session.session import OpenPacket, Progress, Session
from apc_contracts.session.session_effects import Effects, Hop
from apc_contracts.vocabulary import ORCHESTRATOR

Record = dict[str, Any]
"""JSON object of the log."""

LIFECYCLE = "packet_lifecycle"
ADMITTED = ["emit", "schema_pass", "policy_pass", "route_selected"]
HANDED_OVER = ["delivery_ack", "consumer_apply"]
ADVANCE = ("ROUTED", "DEAD_LETTERED", "DELIVERED", "APPLIED", "SUPERSEDED", "VERIFIED", "PROMOTED", "ARCHIVED")
"""How far a delivery has come, in the order of the diagram (docs/specification/contract.md section 8).

The log ranks them alike.
"""


def move(
    opened: OpenPacket,
    recipient: str,
    progress: Progress,
    events: list[str],
    now: datetime,
    effects: Effects,
    contract: Contract,
    *,
    remark: Record | None = None,
) -> None:
    """Take the events of one of the gate's own hops; `remark` is the hop's metadata."""
    before, machine = progress.state, contract.machine(LIFECYCLE)
    for event in events:
        progress.state = machine.step(progress.state, event)
    packet_id = opened.packet.packet_id
    times = [now] * len(events)
    hop = Hop(packet_id, recipient, progress.attempt, before, progress.state, events, times, ORCHESTRATOR, remark)
    effects.hops.append(hop)


def end_delivery(session: Session, opened: OpenPacket, recipient: str, effects: Effects) -> None:
    """Stop counting the delivery as outstanding."""
    progress = opened.recipients[recipient]
    if not progress.is_open:
        return
    progress.is_open = False
    effects.ended.append(recipient)
    effects.ended_senders.append(opened.packet.sender.agent_id)
    left = session.outstanding[recipient] - 1
    if left:
        session.outstanding[recipient] = left
    else:
        del session.outstanding[recipient]


def overall_state(states: Sequence[str]) -> str:
    """Return a routed packet's state: the least advanced recipient's. Rejected and expired ones do not count."""
    advancing = [state for state in states if state in ADVANCE]
    return min(advancing, key=ADVANCE.index) if advancing else min(states, default="ROUTED")
