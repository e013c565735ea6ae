"""`apc effect` beside a running system: an operator settles an unknown effect, and the log has it everywhere."""

import asyncio
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import SESSION, make_idea, make_packet, until

from apc_agents.effects import EffectClaim, EffectId, PostgresEffectStore
from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import Packet
from apc_contracts.wire.receipts import EffectEntry, EffectReport, Receipt, ReceiptKind, encode_receipts
from apc_log.queries import packet_effects


async def claimed(house: House, *keys: str) -> Packet:
    """Return a packet whose recipient has died while it made these effects."""
    sent = make_packet("red-1", make_idea(), ("blue-1",), parent=house.opening)
    await house.agents.publish(sent)
    await until(house.is_logged(sent.packet_id))
    store, receipts = PostgresEffectStore(house.pool), []
    for key in keys:
        claim = EffectClaim(
            effect_id=EffectId(sent.packet_id, "blue-1", key),
            claim_id=uuid4(),
            session_id=SESSION,
            worker="blue-1@host:1",
            expires_at=datetime.now(UTC) + timedelta(days=1),
        )
        await store.claim(claim, timedelta(0))
        receipts += [
            Receipt(
                packet_id=sent.packet_id,
                session_id=SESSION,
                recipient="blue-1",
                kind=ReceiptKind.EFFECT,
                attempt=1,
                at=datetime.now(UTC),
                effect=EffectReport(key=key, claim=claim.claim_id, entry=entry),
            )
            for entry in (EffectEntry.CLAIMED, EffectEntry.UNKNOWN)
        ]
    bus = house.agents.bus
    body = encode_receipts(receipts)
    await bus.publish(Publication(RECEIPTS, "0", Message(body, "m", type=headers.TYPE_RECEIPTS, user_id=bus.user)))
    await until(stands(house, sent, "unknown"))
    return sent


def stands(house: House, packet: Packet, *expected: str) -> Callable[[], Any]:
    """Return a condition: so the packet's effects stand in the log."""

    async def holds() -> bool:
        found = [one.state for one in await packet_effects(house.pool, packet.packet_id)]
        return bool(found) and set(found) == set(expected)

    return holds


@pytest.mark.long
async def test_an_operator_settles_an_effect_and_the_log_has_it(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    apc = ApcCommand(tmp_path)
    reading = {"APC_DATABASE_URL": postgres_url}

    async def run(*arguments: str, **given: str) -> Any:
        return await asyncio.to_thread(apc, *arguments, given=reading | given)

    async with house.persister(), house.gate():
        await house.open_session()
        sent = await claimed(house, "charge", "mail")
        place = (str(sent.packet_id), "blue-1")
        explained = (await run("session", "explain", SESSION)).stdout
        assert f"`apc effect settle {sent.packet_id} blue-1 charge`" in explained.replace("\\n", " ")
        acting = {"APC_AMQP_URL": amqp_vhost_url}
        settled = await run("effect", "settle", *place, "charge", "--result", '{"receipt": "r-7"}', **acting)
        assert (settled.returncode, settled.stderr) == (0, "")
        released = await run("effect", "settle", *place, "mail", "--not-made", **acting)
        assert (released.returncode, released.stderr) == (0, "")
        await until(stands(house, sent, "settled", "absent"))
        (listed,) = json.loads((await run("effect", "list", "--packet", str(sent.packet_id))).stdout)
        assert (listed["key"], listed["state"], listed["log"]) == ("charge", "MADE", "settled")
    entries = json.loads((await run("effect", "show", str(sent.packet_id))).stdout)
    assert [(one["key"], one["entry"], one["actor"]) for one in entries] == [
        ("charge", "claimed", "blue-1"),
        ("charge", "unknown", "blue-1"),
        ("charge", "settled", "librarian"),
        ("mail", "claimed", "blue-1"),
        ("mail", "unknown", "blue-1"),
        ("mail", "released", "librarian"),
    ]
    assert "r-7" not in json.dumps(entries), "the log has the digest, not the result"
    assert json.loads((await run("effect", "show", "--session", SESSION)).stdout) == entries
    (traced,) = json.loads((await run("packet", "trace", "--packet-id", str(sent.packet_id))).stdout)
    assert traced["effects"] == entries
    tree = json.loads((await run("packet", "tree", str(sent.packet_id))).stdout)
    assert tree["effects"] == entries
    assert (await run("effect", "show")).returncode == 2
    bundle = str(tmp_path / "bundle")
    exported = await run(
        "log", "export", "--run-id", sent.trace.run_id, "--out", bundle, APC_LOG_KEY=os.environ["APC_LOG_KEY"]
    )
    assert exported.returncode == 0, exported.stderr
    for check in (("log", "check", bundle, "--no-key"), ("packet", "replay", "--verify", "--bundle", bundle)):
        checked = await run(*check)
        assert checked.returncode == 0, checked.stdout + checked.stderr


async def test_a_decision_stands_where_no_log_can_be_told(house: House, postgres_url: str, tmp_path: Path) -> None:
    async with house.persister(), house.gate():
        await house.open_session()
        sent = await claimed(house, "charge")
    place = (str(sent.packet_id), "blue-1", "charge")
    given = {"APC_DATABASE_URL": postgres_url}
    apc = ApcCommand(tmp_path)
    told = await asyncio.to_thread(apc, "effect", "settle", *place, "--not-made", given=given)
    assert told.returncode == 0
    assert told.stderr.startswith("apc: it is settled, but the log was not told: ")
