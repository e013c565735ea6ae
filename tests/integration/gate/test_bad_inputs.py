"""What agents get wrong at a running gate: each mistake has one answer that names the place, and moves nothing."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from tests.integration.conftest import House
from tests.support.traffic import make_idea, make_packet, make_start, until

from apc_contracts import AckPayload, Packet, RetractionPayload, SignalPayload, TaskIrPayload
from apc_contracts.payloads.by_type import SignalFields
from apc_contracts.payloads.session_signals import Budgets, SwarmSpec
from apc_contracts.payloads.task_ir import ConstraintKind, IrConstraint, IrHeader
from apc_contracts.vocabulary import AckStatus, Signal
from apc_contracts.wire.parsing import seal

JUDGED = """
SELECT refusal ->> 'code' || ' at ' || (refusal ->> 'path') AS place, refusal ->> 'message' AS message
FROM apc_log.agent_packets WHERE packet_id = $1
UNION ALL
SELECT code, reason FROM apc_log.packet_conflicts WHERE packet_id = $1
"""
STANDS = "SELECT state, step, document -> 'spent' AS spent, document -> 'task_budgets' AS parts FROM apc_log.sessions"
NOTE = "SELECT metadata #>> '{acknowledges,as}' FROM apc_log.packet_transitions WHERE packet_id = $1 AND recipient = ''"


def signal(agent: str, name: Signal, **fields: Any) -> Packet:
    return make_packet(agent, SignalPayload(signal=name, reason="r"), **fields)


def retraction(target: UUID) -> RetractionPayload:
    return RetractionPayload(target_packet_id=target, reason="r")


def changed(packet: Packet, change: Callable[[Any], None]) -> bytes:
    """Return the bytes of a packet that no model would make."""
    document = json.loads(seal(packet).body)
    change(document)
    return json.dumps(document).encode()


def bad_packets(opening: Packet, idea: Packet) -> list[tuple[Packet, bytes | None, str, str]]:
    """Packet, its bytes where no model would make them, code and place of the refusal, words of what helps."""
    elsewhere = make_start("s-2")
    many = tuple(SwarmSpec(swarm_id=f"swarm-{number}", agents=()) for number in range(257))
    huge = tuple(f"task-{number:059}" for number in range(5000))
    payload = elsewhere.payload_as(SignalFields)

    def start_with(**fields: Any) -> Packet:
        assert payload.session is not None
        spec = payload.session.model_copy(update=fields)
        return make_packet("librarian", payload.model_copy(update={"session": spec}), session_id="s-2")

    def negative(document: Any) -> None:
        document["payload"]["session"]["budgets"] = {"packets": -1}

    def unknown(document: Any) -> None:
        document["payload"]["session"]["budget"] = {"packets": 1}

    def swollen(document: Any) -> None:
        document["payload"]["session"]["task_ids"] = huge

    not_allowed = "NOT_AUTHORIZED at payload.signal"
    return [
        (signal("red-1", Signal.STOP), None, not_allowed, "needs the right operate"),
        (signal("red-1", Signal.PAUSE, parent=opening), None, not_allowed, "needs the right operate"),
        (signal("blue-1", Signal.VETO, parent=opening), None, not_allowed, "needs the right veto"),
        (make_start(), None, "NOT_AUTHORIZED at trace.session_id", "START begins a session of a new session_id"),
        (start_with(), changed(start_with(), negative), "SCHEMA_INVALID", "payload.session.budgets.packets"),
        (start_with(), changed(start_with(), unknown), "SCHEMA_INVALID", "payload.session.budget"),
        (start_with(), changed(start_with(), swollen), "TOO_LARGE", "the limit is 262144"),
        (start_with(swarms=many), None, "TOO_LARGE", "at payload.session.swarms: 257 swarms, the limit is 256"),
        (
            make_packet("blue-1", retraction(idea.packet_id)),
            None,
            "NOT_AUTHORIZED at payload.target_packet_id",
            "red-1",
        ),
        (make_packet("red-1", retraction(UUID(int=7))), None, "NOT_RETRACTABLE at payload.target_packet_id", "session"),
        (make_packet("red-1", make_idea(), ("nobody",)), None, "UNROUTABLE at recipients[0]", "nobody"),
        (make_packet("red-1", make_idea(), session_id="s-9"), None, "UNKNOWN_SESSION at trace.session_id", "START"),
        (brief("packets=11", parent=opening), None, "BUDGET_EXHAUSTED at payload.objects", "ask for less"),
    ]


def brief(expression: str, **fields: Any) -> Packet:
    header = IrHeader(task_id="task-2", run_id="run-1", swarm_id="library", dialect_id="d", dialect_hash="h")
    budget = IrConstraint(id="b", constraint_kind=ConstraintKind.BUDGET, expression=expression)
    return make_packet("librarian", TaskIrPayload(ir_header=header, objects=(budget,)), ("red-1",), **fields)


async def test_each_mistake_has_one_answer_and_moves_nothing(house: House) -> None:
    house.opening = make_start(budgets=Budgets(packets=10))
    idea = make_packet("red-1", make_idea(), parent=house.opening)
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(idea)
        await until(house.is_logged(idea.packet_id))
        before = await house.pool.fetch(STANDS)
        given = bad_packets(house.opening, idea)
        for packet, body, *_ in given:
            await house.agents.publish(packet, body=body)
        last = make_packet("red-1", make_idea(), parent=house.opening)
        await house.agents.publish(last)
        await until(house.is_logged(last.packet_id))
        for packet, _, place, words in given:
            rows = await house.pool.fetch(JUDGED, packet.packet_id)
            assert len(rows) == 1, (place, rows)
            assert rows[0]["place"] == place and words in rows[0]["message"], (place, words, rows)
        nacks = await house.agents.receive("red-1", count=4, urgent=True)
        assert {one.message.type for one in nacks} == {"NACK"}, "of each but the RETRACTION, which is never answered"
        (after,) = await house.pool.fetch(STANDS)
    assert (after["state"], after["step"], after["parts"]) == (before[0]["state"], before[0]["step"], "{}")
    assert json.loads(after["spent"]) == {"packets": 2}, "what is refused costs nothing"


async def test_what_names_nothing_is_recorded_and_moves_nothing(house: House) -> None:
    """A text that is no budget, an ACK of nothing, a VETO without an arbitration."""
    async with house.persister(), house.gate():
        await house.open_session()
        text = brief("packets=-1", parent=house.opening)
        ack = make_packet("red-1", AckPayload(acked_packet_id=UUID(int=7), ack_status=AckStatus.ACCEPTED))
        veto = signal("sentinel", Signal.VETO, parent=house.opening)
        await house.agents.publish(text, ack, veto)
        await until(house.is_logged(text.packet_id, ack.packet_id, veto.packet_id))
        assert await house.count("agent_packets", "verdict = 'refused'") == 0
        (row,) = await house.pool.fetch(STANDS)
        assert (row["state"], row["parts"]) == ("SESSION_OPEN", "{}")
        assert await house.pool.fetchval(NOTE, ack.packet_id) == "unknown"
