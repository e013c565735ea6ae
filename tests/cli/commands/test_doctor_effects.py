"""What `apc doctor` says of effects whose end nobody knows."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from apc_agents.effects import EffectClaim, EffectId, PostgresEffectStore
from apc_bus.database import open_pool
from apc_cli.doctor.agents import EFFECTS_FIX, look_at_effects
from apc_cli.doctor.finding import ok, warning


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[asyncpg.Pool]:
    pool = await open_pool(postgres_url, max_size=1)
    yield pool
    await pool.close()


async def test_unknown_effects_are_told_until_they_are_settled(pool: asyncpg.Pool) -> None:
    store, effect_id = PostgresEffectStore(pool), EffectId(uuid4(), "payer-1", "charge")
    assert await look_at_effects(pool) == [ok("effects", "none is unknown")]
    expires_at = datetime.now(UTC) + timedelta(days=1)
    claim = EffectClaim(effect_id=effect_id, claim_id=uuid4(), session_id="s-1", worker="w", expires_at=expires_at)
    await store.claim(claim, timedelta(0))
    told = "1 waits to be settled (of payer-1), the oldest for 0.0 h"
    assert await look_at_effects(pool) == [warning("effects", told, EFFECTS_FIX)]
    await store.settle(effect_id, None, "operator")
    assert await look_at_effects(pool) == [ok("effects", "none is unknown")]


async def test_a_user_without_the_right_is_told_so(pool: asyncpg.Pool) -> None:
    await pool.execute("SET ROLE apc_reader")
    (finding,) = await look_at_effects(pool)
    assert finding.finding.startswith("not looked at")
