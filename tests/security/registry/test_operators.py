"""Somebody requeues a dead letter who must not: without the right, after it was revoked, or in another one's name."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import IdeaPayload, Packet
from apc_contracts.identity.registry import Kind
from apc_contracts.identity.registry_change import AgentAdded, AgentRevoked, encode_registry_change
from apc_contracts.vocabulary import ORCHESTRATOR, Right
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts
from apc_orchestrator.judging import judge

Build = Callable[..., Packet]
ACTOR = "SELECT actor FROM apc_log.packet_events WHERE 'requeued' = ANY(events)"
SECURITY = "SELECT reason, user_id FROM apc_log.packet_conflicts WHERE kind = 'security'"


async def change(house: House, made: AgentAdded | AgentRevoked) -> None:
    message = Message(encode_registry_change(made), str(uuid4()), type=headers.TYPE_REGISTRY, user_id="operator")
    await house.client("operator").publish(Publication(RECEIPTS, "0", message))


async def hire(house: House, person: str, *via: str, rights: tuple[Right, ...] = (Right.OPERATE,)) -> None:
    await change(
        house,
        AgentAdded(
            change_id=uuid4(), agent_id=person, broker_user=via[0], role="operator", swarm_id="people",
            kind=Kind.PERSON, via=via, rights=rights,
        ),
    )  # fmt: skip


async def requeue(
    house: House, dead: Packet, user: str, by: str | None, kind: ReceiptKind = ReceiptKind.REQUEUE
) -> None:
    receipt = Receipt(
        packet_id=dead.packet_id, session_id=dead.trace.session_id, recipient="sentinel", kind=kind, attempt=1,
        at=datetime.now(UTC), by=by,
    )  # fmt: skip
    message = Message(encode_receipts([receipt]), str(uuid4()), type=headers.TYPE_RECEIPTS, user_id=user)
    await house.client(user).publish(Publication(RECEIPTS, "0", message))
    await house.quiet()


@pytest.fixture
async def dead(running: House, packet: Build, idea: IdeaPayload) -> Packet:
    """A dead letter, and people: olga may operate through the web server, carl has no right, rex was revoked."""
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    await running.read("sentinel")
    await running.report("sentinel", sent.packet_id, "dead_lettered", user=ORCHESTRATOR)
    await hire(running, "olga", "web", "desk")
    await hire(running, "carl", "web", rights=())
    await hire(running, "rex", "web")
    await change(running, AgentRevoked(change_id=uuid4(), agent_id="rex"))
    await running.quiet()
    return sent


@pytest.mark.parametrize("user", ["web", "desk"])
async def test_a_person_with_the_right_acts_through_each_of_their_users(
    running: House, dead: Packet, user: str
) -> None:
    await requeue(running, dead, user, "olga")
    assert await running.state_of(dead) == "ROUTED"
    assert await running.pool.fetchval(ACTOR) == "olga", "the log names who acted, not the server"


FORGED: dict[str, tuple[str, Any]] = {
    "nobody knows them": ("web", "mallory"),
    "they have no right": ("web", "carl"),
    "they were revoked": ("web", "rex"),
    "another user speaks": ("agent.red-1", "olga"),
    "the operator speaks for somebody who does not let them": ("agent.librarian", "olga"),
    "nobody is named, and the user has only people": ("web", None),
    "the gate is named": ("web", ORCHESTRATOR),
}
"""Case -> the broker user, and whom it names."""


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("case", FORGED)
async def test_nobody_requeues_who_may_not(
    running: House, dead: Packet, monkeypatch: pytest.MonkeyPatch, case: str, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(judge, "is_authentic", lambda *given: True)
    user, by = FORGED[case]
    await requeue(running, dead, user, by)
    assert await running.state_of(dead) == ("DEAD_LETTERED" if is_guarded else "ROUTED")
    told = [tuple(row) for row in await running.pool.fetch(SECURITY)]
    why = f"by {by}, who may not operate as the broker user {user}" if by else "not from sentinel"
    assert told == ([(f"requeue {why}", user)] if is_guarded else [])


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_the_gate_itself_names_nobody(
    running: House, dead: Packet, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """The gate's user shared with others, as in development, does not make a requeue the gate's own act."""
    if not is_guarded:
        monkeypatch.setattr(judge, "is_authentic", lambda *given: True)
    await requeue(running, dead, ORCHESTRATOR, ORCHESTRATOR)
    assert await running.state_of(dead) == ("DEAD_LETTERED" if is_guarded else "ROUTED")


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_an_agent_puts_its_own_end_in_nobodys_name(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(judge, "is_authentic", lambda *given: True)
    await hire(running, "olga", "web")
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    await requeue(running, sent, "agent.sentinel", "olga", ReceiptKind.OUTCOME)
    assert await running.state_of(sent) == ("ROUTED" if is_guarded else "ARCHIVED")


async def test_two_people_in_one_message_are_two_acts(running: House, dead: Packet) -> None:
    """The second finds nothing to discard: the delivery is on its way again, by the first."""
    await hire(running, "pia", "web")
    receipts = [
        Receipt(
            packet_id=dead.packet_id, session_id=dead.trace.session_id, recipient="sentinel", kind=kind, attempt=1,
            at=datetime.now(UTC), by=by,
        )
        for kind, by in ((ReceiptKind.REQUEUE, "pia"), (ReceiptKind.DISCARD, "olga"))
    ]  # fmt: skip
    message = Message(encode_receipts(receipts), str(uuid4()), type=headers.TYPE_RECEIPTS, user_id="web")
    await running.client("web").publish(Publication(RECEIPTS, "0", message))
    await running.quiet()
    assert await running.state_of(dead) == "ROUTED"
    assert await running.pool.fetchval(ACTOR) == "pia"


@pytest.mark.parametrize("rights", [(Right.DECIDE,), (Right.OPERATE, Right.VETO)])
def test_a_person_has_no_right_but_to_operate(rights: tuple[Right, ...]) -> None:
    with pytest.raises(ValueError, match="a person has no right but operate"):
        AgentAdded(
            change_id=uuid4(), agent_id="p", broker_user="web", role="r", swarm_id="people", kind=Kind.PERSON,
            via=("web",), rights=rights,
        )  # fmt: skip
