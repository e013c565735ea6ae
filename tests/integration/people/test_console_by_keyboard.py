"""A person answers, requeues and checks a proof in a browser, with the keyboard alone, over RabbitMQ."""

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from tests.integration.people.test_approvals import Desk, desk, make_task, start_task
from tests.support.log.tampering import disable_guards
from tests.support.traffic import make_idea, make_packet, until
from tests.support.web.browser import browse, require_page, served
from tests.web.conftest import TOKEN

from apc_bus.settings import BusSettings, PersisterSettings
from apc_bus.topology import agent_queue
from apc_cli.commands.ui import OperatorActs
from apc_contracts import Packet, SignalPayload, load_contract
from apc_contracts.payloads.by_type import Question
from apc_contracts.vocabulary import RunPhase, Signal
from apc_persister.evidence.checkpoint import load_signer
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.live import Feed
from apc_web.pool import open_reader, open_state_reader
from apc_web.route_services import Services

__all__ = ["desk"]
HOSTILE = "<img src=x onerror=alert(1)> \u202e"
FORM: dict[str, Any] = {
    "properties": {
        "share": {"type": "integer", "title": "Share in percent", "description": "Who gets it first.", "maximum": 100},
        "kind": {"enum": ["beta", "stable"], "title": HOSTILE},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["share", "kind"],
}
"""What the question asks for, with a title that acts where it is not shown as text."""
FILLED_IN = "SELECT packet #> '{payload,answer,content}' FROM apc_log.packets WHERE packet #>> '{payload,answer}' <> ''"
CHANGE = "UPDATE apc_log.agent_packets SET sender_role = $2 WHERE packet_id = $1"


@pytest.mark.long
@pytest.mark.journey
@pytest.mark.timeout(300)
async def test_a_person_acts_with_the_keyboard_alone(
    desk: Desk, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_page()
    house = desk.house
    monkeypatch.setenv("APC_AMQP_URL", house.settings.amqp_url.get_secret_value())
    wait, contract = timedelta(seconds=10), load_contract()
    pool, state = await open_reader(postgres_url, wait), await open_state_reader(postgres_url, wait)
    acts = OperatorActs(pool, BusSettings())
    key_of = load_signer(PersisterSettings()).public_key
    services = Services(pool, contract, key_of, state, Feed(pool, contract), is_embedded=False, acts=acts)
    async with desk.services(), served(AccessGuard(make_app(services), TOKEN)) as url:
        await house.open_session()
        await desk.add_person("alice", "release-manager")
        sent = make_packet("red-1", make_idea(), ("blue-1",), parent=house.opening)
        opening = start_task("s-2")
        task = make_task(opening)
        ask = _question(task)
        await house.agents.publish(sent, opening, task, ask)
        await until(house.is_logged(ask.packet_id))
        async with house.agents.bus.subscribe(agent_queue("blue-1", urgent=False)) as inbox:
            (delivery,) = await inbox.receive()
            await inbox.nack(delivery, requeue=False)
            await until(house.has_come_to("DEAD_LETTERED", sent.packet_id, "blue-1"))

        async def change_the_row(role: str = "intern") -> None:
            await disable_guards(house.pool)
            await house.pool.execute(CHANGE, ask.packet_id, role)

        given = {"url": url, "token": TOKEN, "question": str(ask.packet_id), "key": str(key_of(0))}
        await browse("acts.mjs", given, {"change the row": change_the_row})
        await change_the_row(ask.sender.role)
        answers = await house.pool.fetch(ANSWERS)
        assert [tuple(row) for row in answers] == [("alice", "approved", "accepted", "looks right")]
        assert orjson.loads(await house.pool.fetchval(FILLED_IN)) == {"share": 20, "kind": "stable"}
        assert await house.pool.fetchval(REQUEUES) == 1
    pool.terminate()
    state.terminate()


def _question(task: Packet) -> Packet:
    payload = SignalPayload(
        signal=Signal.ASK,
        question=Question(text="Ship build 7?", content={"tests": "212 passed"}, answer_schema=FORM),
        expected_response_by=datetime.now(UTC) + timedelta(hours=1),
    )
    return make_packet(
        "red-1", payload, ("alice",), parent=task, phase=RunPhase.EXECUTION, version="apc/1.1", session_id="s-2"
    )


REQUEUES = "SELECT count(*) FROM apc_log.packet_transitions WHERE event = 'requeued'"
ANSWERS = """
SELECT packet #>> '{sender,agent_id}' AS by, packet #>> '{payload,answer,outcome}' AS outcome, verdict,
       packet #>> '{payload,answer,note}' AS note
FROM apc_log.packets WHERE packet #>> '{payload,signal}' = 'ANSWER' ORDER BY seq
"""
