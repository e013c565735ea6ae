"""`apc effect`, as an operator runs it beside the services."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.apc_command import ApcCommand

from apc_agents.effects import EffectClaim, EffectId, PostgresEffectStore
from apc_bus.database import open_pool


async def test_an_operator_looks_at_effects_and_settles_them(postgres_url: str, tmp_path: Path) -> None:
    apc = ApcCommand(tmp_path)

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(apc, "effect", *arguments, given={"APC_DATABASE_URL": postgres_url})

    pool = await open_pool(postgres_url)
    store, packet_id = PostgresEffectStore(pool), uuid4()
    for key in ("charge", "mail"):
        effect_id = EffectId(packet_id, "payer-1", key)
        expires_at = datetime.now(UTC) + timedelta(days=1)
        claim = EffectClaim(
            effect_id=effect_id, claim_id=uuid4(), session_id="s-1", worker="payer-1@host:1", expires_at=expires_at
        )
        await store.claim(claim, timedelta(0))
    await pool.close()
    listed = json.loads((await run("list", "--agent", "payer-1", "--state", "unknown")).stdout)
    assert [(one["packet_id"], one["key"]) for one in listed] == [(str(packet_id), "mail"), (str(packet_id), "charge")]
    place = (str(packet_id), "payer-1")
    settled = json.loads((await run("settle", *place, "charge", "--result", '{"receipt": 7}')).stdout)
    assert [(one["state"], one["result"], one["settled_by"]) for one in settled] == [
        ("MADE", {"receipt": 7}, "operator")
    ]
    (released,) = json.loads((await run("settle", *place, "mail", "--not-made")).stdout)
    assert released["state"] == "RELEASED"
    assert [one["key"] for one in json.loads((await run("list", "--packet", str(packet_id))).stdout)] == ["charge"]
    for failed, words in (
        (await run("settle", *place, "charge", "--result", "1"), "by payer-1 is MADE"),
        (await run("settle", *place, "charge"), "--result JSON if it has happened, --not-made if it has not"),
        (await run("settle", *place, "mail", "--result", "paid"), "is no JSON"),
        (await run("settle", "7", "payer-1", "mail", "--not-made"), "is no packet_id"),
        (await run("list", "--state", "asleep"), "use one of RUNNING, UNKNOWN, RESULT_LOST, MADE"),
    ):
        assert failed.returncode == 2 and words in failed.stderr and len(failed.stderr.splitlines()) == 1
