"""An agent's message dies in the gate's queue, by itself or made to: what the broker had confirmed leaves its trace."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_bus.port import Delivery, HeaderValue, Message, Publication
from apc_bus.topology import DEAD_QUEUE, INGRESS, RECEIPTS, agent_queue, gate_queue
from apc_contracts import IdeaPayload, Packet
from apc_contracts.wire.parsing import seal
from apc_orchestrator import dead_letters
from apc_orchestrator.dead_letters import DEATH_QUEUE, DEATH_REASON
from apc_orchestrator.judging.judge import Unreadable
from apc_orchestrator.publications import dead_input

Build = Callable[..., Packet]
CONFLICTS = "SELECT kind, code, reason, raw, packet_id, user_id FROM apc_log.packet_conflicts ORDER BY seq"


async def put_behind_the_gate(house: House, packet: Packet, exchange: str = INGRESS, **fields: Any) -> bytes:
    """While no gate consumes; the broker has confirmed it, and then it dies."""
    operator, body = house.client("operator"), seal(packet).body
    fields = {"type": packet.packet_type.value, "user_id": f"agent.{packet.sender.agent_id}"} | fields
    message = Message(body, str(packet.packet_id), expiration_ms=1, **fields)
    await house.client(str(fields["user_id"])).publish(Publication(exchange, "0", message))

    async def is_dead() -> bool:
        return bool(
            (await operator.depth(DEAD_QUEUE)).messages == 1 and not (await operator.depth(gate_queue(0))).messages
        )

    await house.until(is_dead)
    return bytes(body)


async def dead_are_read(house: House) -> None:
    async def is_empty() -> bool:
        found = house.broker.queue(DEAD_QUEUE)
        return not len(found) and not any(consumer._unacked for consumer in found.consumers)

    await house.until(is_empty)
    await house.quiet()


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_packet_that_dies_while_the_gate_is_behind(
    house: House, packet: Build, start: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(dead_letters, "reports_of", lambda *letter: [])
    async with house.persister():
        async with house.gate():
            await house.open(start())
            await house.handle_all()
        sent = packet("red-1", idea, ("sentinel",), parent=house.opening)
        body = await put_behind_the_gate(house, sent)
        async with house.gate():
            await dead_are_read(house)
            rows = await house.pool.fetch(CONFLICTS)
            answers = await house.nacks("red-1")
    assert await house.state_of(sent) is None, "it was not judged"
    if not is_guarded:
        assert rows == [] and answers == [], "lost without a trace"
        return
    (row,) = rows
    assert (row["kind"], row["code"], row["raw"]) == ("dead_input", "EXPIRED", body)
    assert (row["packet_id"], row["user_id"]) == (sent.packet_id, "agent.red-1")
    (nack,) = answers
    assert nack.payload.acked_packet_id == sent.packet_id and "AMQP expiration" in nack.payload.reason


def what_died_in_a_gates_queue(letter: Delivery, *_: object) -> list[Publication]:
    """Report as if the headers were true: what says that it died elsewhere is none of the gate's inputs."""
    message, queue = letter.message, str(letter.message.headers[DEATH_QUEUE])
    return dead_input(message, queue, "expired", 0, "orchestrator") if queue == gate_queue(0) else []


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("queue", [agent_queue("sentinel", False), "apc.dead.letters", "x" * 2000])
async def test_forged_headers_of_a_death_hide_nothing(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, queue: str, is_guarded: bool
) -> None:
    """Its broker user says that it was no delivery of the gate, whatever its headers say."""
    if not is_guarded:
        monkeypatch.setattr(dead_letters, "reports_of", what_died_in_a_gates_queue)
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    forged: dict[str, HeaderValue] = {DEATH_QUEUE: queue, DEATH_REASON: "expired", headers.ATTEMPT: 1}
    letter = Message(seal(sent).body, str(sent.packet_id), type="NACK", user_id="agent.red-1", headers=forged)
    await running.client("agent.red-1").publish(Publication("apc.dead", "0", letter))
    await dead_are_read(running)
    if not is_guarded:
        assert await running.pool.fetch(CONFLICTS) == [], "lost without a trace"
        return
    (row,) = await running.pool.fetch(CONFLICTS)
    assert (row["kind"], row["raw"]) == ("dead_input", seal(sent).body)


def any_teller_is_believed(unguarded: pytest.MonkeyPatch) -> None:
    """Take away the comparison with the gate's own user."""
    refuse = Unreadable.refuse_dead

    def believed(self: Unreadable, batch: Any, found: Any, message: Message) -> None:
        self._own_user = str(message.user_id)
        refuse(self, batch, found, message)

    unguarded.setattr(Unreadable, "refuse_dead", believed)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_only_the_orchestrator_tells_of_dead_inputs(
    running: House, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """Else an agent could write refusals in another's name."""
    if not is_guarded:
        any_teller_is_believed(monkeypatch)
    told: dict[str, HeaderValue] = {
        headers.DIED_IN: gate_queue(0),
        headers.DIED_USER: "agent.blue-1",
        headers.DIED_ID: str(UUID(int=1)),
    }
    message = Message(b"{}", str(uuid4()), type=headers.TYPE_DEAD_INPUT, user_id="agent.red-1", headers=told)
    await running.client("agent.red-1").publish(Publication(RECEIPTS, "0", message))
    await running.quiet()
    (row,) = await running.pool.fetch(CONFLICTS)
    if not is_guarded:
        assert (row["kind"], row["user_id"]) == ("dead_input", "agent.blue-1")
        assert len(await running.nacks("blue-1")) == 1, "of a packet that it never sent"
        return
    assert (row["kind"], row["user_id"]) == ("security", "agent.red-1")
    assert await running.nacks("blue-1") == []
