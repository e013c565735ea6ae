"""`apc dead-letter`, as an operator runs it beside the services."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import SESSION, make_idea, make_packet, until

from apc_cli.commands.dead_letter import Filter, dead_documents, dead_rows, settle_dead
from apc_cli.errors import InputUnusable
from apc_contracts import SignalPayload
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind

SAID = """
SELECT to_state, metadata ->> 'error' FROM apc_log.packet_events WHERE metadata ->> 'error' ~ ' by ' ORDER BY seq
"""
REQUEUE, DISCARD = ReceiptKind.REQUEUE, ReceiptKind.DISCARD
ANY = Filter()


@pytest.fixture
async def running(house: House, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    """A house with an open session, and its addresses in the environment."""
    monkeypatch.setenv("APC_AMQP_URL", house.settings.amqp_url.get_secret_value())
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    async with house.persister(), house.gate():
        await house.open_session()
        yield house


async def test_an_operator_requeues_and_discards(running: House) -> None:
    first, both = await running.dead_letter("blue-1"), await running.dead_letter("blue-1", "sentinel")
    limited = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening, retry_limit=0)
    await running.agents.publish(limited)
    await running.agents.receive("blue-1")
    await running.agents.report("blue-1", [limited.packet_id], ReceiptKind.RETRY)
    await until(running.has_come_to("DEAD_LETTERED", limited.packet_id, "blue-1"))
    (told,) = await running.agents.receive("red-1", urgent=True)
    await running.agents.report("red-1", [UUID(told.message.message_id)])

    listed = await dead_rows(Filter(SESSION), limit=100)
    assert [(row["packet_id"], row["recipient"], row["reason"]) for row in listed] == [
        (first.packet_id, "blue-1", "handler_error"),
        (both.packet_id, "blue-1", "handler_error"),
        (both.packet_id, "sentinel", "handler_error"),
        (limited.packet_id, "blue-1", "retry_limit 0 reached: no reason given"),
    ]
    assert await dead_rows(ANY, limit=1) == listed[:1]
    assert await dead_rows(Filter(recipient="blue-1", reason="retry_limit"), limit=9) == listed[3:]
    (shown,) = await dead_documents(str(first.packet_id), ANY)
    assert (shown["sender"], [hop["to_state"] for hop in shown["hops"]]) == ("red-1", ["DEAD_LETTERED"])

    (again,) = await settle_dead(REQUEUE, [str(first.packet_id)], ANY, note="mended")
    assert (again["state"], again["attempt"]) == ("ROUTED", 2)
    (delivery,) = await running.agents.receive("blue-1")
    assert (delivery.message.message_id, delivery.message.headers["apc-attempt"]) == (str(first.packet_id), 2)
    (rested,) = await settle_dead(DISCARD, [], Filter(recipient="sentinel"), is_all=True)
    assert (rested["packet_id"], rested["recipient"], rested["state"]) == (both.packet_id, "sentinel", "ARCHIVED")
    assert len(await settle_dead(REQUEUE, [], Filter(recipient="blue-1"), is_all=True)) == 2
    assert len(await running.agents.receive("blue-1", 2)) == 2
    await running.agents.report("blue-1", [one.packet_id for one in (first, both, limited)], attempt=2)
    await until(running.has_nothing_open)
    assert await settle_dead(DISCARD, [], ANY, is_all=True) == []
    assert [tuple(hop) for hop in await running.pool.fetch(SAID)] == [
        ("ROUTED", "requeued by librarian: mended"),
        ("ARCHIVED", "discarded by librarian"),
        ("ROUTED", "requeued by librarian"),
        ("ROUTED", "requeued by librarian"),
    ]


async def test_what_cannot_be_done_is_said_in_a_line(running: House, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, gone = await running.dead_letter("blue-1"), await running.dead_letter("blue-1", ttl_ms=2_000)
    alive = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    await running.agents.publish(alive)
    await until(running.is_logged(alive.packet_id))
    await settle_dead(DISCARD, [str(dead.packet_id)], ANY)

    async def is_over() -> bool:
        return bool(gone.expires <= datetime.now(UTC))

    await until(is_over)
    unknown = str(uuid4())
    for call, words in (
        (settle_dead(REQUEUE, [], ANY), "name packets (`apc dead-letter list` shows them), or give --all"),
        (settle_dead(DISCARD, [unknown], ANY, is_all=True), "not both"),
        (settle_dead(REQUEUE, ["x"], ANY), "'x' is no packet_id"),
        (settle_dead(DISCARD, [unknown], ANY), f"the log holds no packet {unknown}"),
        (dead_documents(unknown, ANY), f"the log holds no packet {unknown}"),
        (settle_dead(REQUEUE, [str(alive.packet_id)], ANY), f"packet {alive.packet_id} is not dead: "),
        (settle_dead(REQUEUE, [str(dead.packet_id)], ANY), "is not dead: blue-1 ARCHIVED (attempt 1)"),
        (settle_dead(DISCARD, [str(dead.packet_id)], ANY), "is not dead: blue-1 ARCHIVED (attempt 1)"),
        (
            dead_documents(str(gone.packet_id), Filter(recipient="x")),
            "is not dead for those who are meant: blue-1 DEAD",
        ),
        (settle_dead(REQUEUE, [str(gone.packet_id)], ANY), "so nobody would handle it"),
        (dead_rows(Filter("elsewhere"), limit=1), "the log holds no session 'elsewhere'"),
        (dead_rows(Filter(recipient="ghost"), limit=1), "--agent: no agent 'ghost' was ever registered"),
        (settle_dead(DISCARD, [], ANY, is_all=True, note="n" * 301), "--note has 301 characters"),
    ):
        with pytest.raises(InputUnusable) as raised:
            await call
        assert words in str(raised.value)
    assert await settle_dead(REQUEUE, [], ANY, is_all=True) == [], "what has expired stays, for a discard"
    monkeypatch.setenv("APC_AMQP_URL", "amqp://nobody@127.0.0.1:1")
    with pytest.raises(InputUnusable, match="right operate is registered for the broker user nobody"):
        await settle_dead(DISCARD, [], ANY, is_all=True)
    monkeypatch.setenv("APC_AMQP_URL", "")
    with pytest.raises(InputUnusable, match="set APC_AMQP_URL"):
        await settle_dead(DISCARD, [], ANY, is_all=True)


async def test_nothing_is_requeued_in_a_session_that_has_halted(
    running: House, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its handler would run, and all that it sends would be refused."""
    dead = await running.dead_letter("blue-1")
    stop = make_packet("librarian", SignalPayload(signal=Signal.STOP), parent=running.opening)
    await running.agents.publish(stop)
    await until(running.is_logged(stop.packet_id))
    with pytest.raises(InputUnusable) as raised:
        await settle_dead(REQUEUE, [str(dead.packet_id)], ANY)
    words = f"session {SESSION} has halted (STOP by librarian), so all that a handler sends there would be refused"
    assert words in str(raised.value)
    capsys.readouterr()
    assert await settle_dead(REQUEUE, [], ANY, is_all=True) == [], "it stays, for a discard"
    assert "1 dead delivery stays: the packet has expired, or its session has halted" in capsys.readouterr().err
    (rested,) = await settle_dead(DISCARD, [], ANY, is_all=True)
    assert (rested["packet_id"], rested["state"]) == (dead.packet_id, "ARCHIVED")


async def test_the_command_prints_json_and_one_line_of_error(running: House, postgres_url: str, tmp_path: Path) -> None:
    apc = ApcCommand(tmp_path)
    given = {"APC_AMQP_URL": running.settings.amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url}
    dead = await running.dead_letter("blue-1")
    discarded = await asyncio.to_thread(apc, "dead-letter", "discard", str(dead.packet_id), "--json", given=given)
    assert json.loads(discarded.stdout) == [
        {
            "session_id": SESSION,
            "packet_id": str(dead.packet_id),
            "recipient": "blue-1",
            "state": "ARCHIVED",
            "attempt": 1,
        }
    ], discarded.stderr
    failed = await asyncio.to_thread(apc, "dead-letter", "requeue", str(dead.packet_id), given=given)
    assert failed.returncode == 2 and not failed.stdout and len(failed.stderr.splitlines()) == 1, failed.stderr
