"""One suite for every effect store: who claims, what is unknown, what is settled, what is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from apc_agents.effects import (
    EffectClaim,
    EffectId,
    EffectRecord,
    EffectSettled,
    EffectState,
    EffectStore,
    InMemoryEffectStore,
    PostgresEffectStore,
)
from apc_agents.errors import StateUnavailable
from apc_agents.sqlite_effects import SQLiteEffectStore
from apc_bus.database import open_pool

LEASE = timedelta(minutes=1)
NO_LEASE = timedelta(0)
A_DAY = timedelta(days=1)


def an_id(key: str = "charge", agent_id: str = "payer-1", packet_id: UUID | None = None) -> EffectId:
    return EffectId(packet_id or uuid4(), agent_id, key)


def a_claim(effect_id: EffectId, *, expired_for: timedelta = -A_DAY) -> EffectClaim:
    return EffectClaim(
        effect_id=effect_id,
        claim_id=uuid4(),
        session_id="s-1",
        worker="payer-1@host:1",
        expires_at=datetime.now(UTC) - expired_for,
    )


async def seen(store: EffectStore, effect_id: EffectId) -> EffectRecord:
    kept = await store.get(effect_id)
    assert kept is not None
    return kept


class EffectStoreSuite:
    """What an EffectStore promises."""

    async def test_the_first_claim_stands_and_its_result_is_kept(self, store: EffectStore) -> None:
        effect_id = an_id()
        first, second = a_claim(effect_id), a_claim(effect_id)
        kept = await store.claim(first, LEASE)
        assert (kept.claim_id, kept.state, kept.worker) == (first.claim_id, EffectState.RUNNING, "payer-1@host:1")
        assert (await store.claim(second, LEASE)).claim_id == first.claim_id
        assert (await store.claim(first, LEASE)).claim_id == first.claim_id  # one whose answer was lost
        made = await store.record(effect_id, first.claim_id, {"receipt": [1, None, "ü"]})
        assert made == await store.claim(second, LEASE)
        assert made is not None
        assert (made.state, made.result) == (EffectState.MADE, {"receipt": [1, None, "ü"]})

    async def test_one_of_many_claimants_gets_it(self, store: EffectStore) -> None:
        effect_id = an_id()
        claims = [a_claim(effect_id) for _ in range(20)]
        kept = await asyncio.gather(*(store.claim(claim, LEASE) for claim in claims))
        assert len({record.claim_id for record in kept}) == 1

    @pytest.mark.parametrize(
        "other", [{"key": "mail"}, {"agent_id": "payer-2"}, {"packet_id": UUID(int=7)}], ids=["key", "agent", "packet"]
    )
    async def test_effects_are_apart_by_packet_agent_and_key(self, store: EffectStore, other: dict[str, Any]) -> None:
        one = an_id(packet_id=UUID(int=1))
        two = an_id(**{"packet_id": UUID(int=1), **other})
        for effect_id in (one, two):
            claim = a_claim(effect_id)
            assert (await store.claim(claim, LEASE)).claim_id == claim.claim_id

    async def test_a_claim_without_a_sign_of_life_is_unknown_and_stands(self, store: EffectStore) -> None:
        claim = a_claim(an_id())
        await store.claim(claim, NO_LEASE)
        again = await store.claim(a_claim(claim.effect_id), LEASE)
        assert (again.claim_id, again.state, again.problem) == (claim.claim_id, EffectState.UNKNOWN, None)
        await store.renew(claim.effect_id, claim.claim_id, LEASE)
        assert (await seen(store, claim.effect_id)).state is EffectState.RUNNING

    async def test_a_holder_that_wakes_up_late_still_knows(self, store: EffectStore) -> None:
        claim = a_claim(an_id())
        await store.claim(claim, NO_LEASE)
        made = await store.record(claim.effect_id, claim.claim_id, 7)
        assert made is not None and (made.state, made.result) == (EffectState.MADE, 7)

    async def test_an_interrupted_effect_says_why(self, store: EffectStore) -> None:
        claim = a_claim(an_id())
        await store.claim(claim, LEASE)
        await store.interrupt(claim.effect_id, claim.claim_id, "TimeoutError was raised: no answer")
        kept = await store.claim(a_claim(claim.effect_id), LEASE)
        assert (kept.state, kept.problem) == (EffectState.UNKNOWN, "TimeoutError was raised: no answer")

    async def test_a_withdrawn_claim_is_free(self, store: EffectStore) -> None:
        claim = a_claim(an_id())
        next_one = a_claim(claim.effect_id)
        await store.claim(claim, LEASE)
        await store.withdraw(claim.effect_id, claim.claim_id)
        assert (await store.claim(next_one, LEASE)).claim_id == next_one.claim_id

    async def test_only_its_holder_may_say_what_became_of_it(self, store: EffectStore) -> None:
        claim, stranger = a_claim(an_id()), uuid4()
        await store.claim(claim, LEASE)
        await store.record(claim.effect_id, stranger, "wrong")
        await store.interrupt(claim.effect_id, stranger, "wrong")
        await store.withdraw(claim.effect_id, stranger)
        await store.renew(claim.effect_id, stranger, NO_LEASE)
        assert (await seen(store, claim.effect_id)).state is EffectState.RUNNING

    async def test_what_was_made_does_not_change(self, store: EffectStore) -> None:
        claim = a_claim(an_id())
        await store.claim(claim, LEASE)
        made = await store.record(claim.effect_id, claim.claim_id, "first")
        await store.record(claim.effect_id, claim.claim_id, "second")
        await store.withdraw(claim.effect_id, claim.claim_id)
        await store.interrupt(claim.effect_id, claim.claim_id, "late")
        await store.renew(claim.effect_id, claim.claim_id, LEASE)
        assert await store.get(claim.effect_id) == made

    async def test_a_lost_result_is_made_and_may_be_given_one(self, store: EffectStore) -> None:
        claim = a_claim(an_id())
        await store.claim(claim, LEASE)
        made = await store.record(claim.effect_id, claim.claim_id, None, problem="result.at is a set")
        assert made is not None and (made.state, made.problem) == (EffectState.RESULT_LOST, "result.at is a set")
        with pytest.raises(EffectSettled, match=r"was made at .* it cannot be released"):
            await store.release(claim.effect_id)
        settled = await store.settle(claim.effect_id, [1], "operator")
        assert (settled.state, settled.result, settled.settled_by) == (EffectState.MADE, [1], "operator")
        assert settled.made_at == made.made_at

    async def test_an_unknown_effect_is_settled_once(self, store: EffectStore) -> None:
        claim = a_claim(an_id())
        await store.claim(claim, NO_LEASE)
        settled = await store.settle(claim.effect_id, None, "operator")
        assert (settled.state, settled.result, settled.problem) == (EffectState.MADE, None, None)
        with pytest.raises(EffectSettled, match=r"effect 'charge' of packet .* by payer-1 is MADE"):
            await store.settle(claim.effect_id, 1, "another")
        with pytest.raises(EffectSettled):
            await store.release(claim.effect_id)
        late = await store.record(claim.effect_id, claim.claim_id, "late")
        assert late == settled

    async def test_two_who_settle_at_once_do_not_both_succeed(self, store: EffectStore) -> None:
        claim = a_claim(an_id())
        await store.claim(claim, NO_LEASE)
        words = (store.settle(claim.effect_id, n, f"operator-{n}") for n in range(8))
        outcomes = await asyncio.gather(*words, return_exceptions=True)
        (won,) = [one for one in outcomes if isinstance(one, EffectRecord)]
        assert sum(isinstance(one, EffectSettled) for one in outcomes) == 7
        assert await store.get(claim.effect_id) == won

    async def test_a_released_effect_is_free_and_its_old_holder_has_lost_it(self, store: EffectStore) -> None:
        old = a_claim(an_id())
        await store.claim(old, NO_LEASE)
        await store.release(old.effect_id)
        assert await store.record(old.effect_id, old.claim_id, "late") is None
        new = a_claim(old.effect_id)
        assert (await store.claim(new, LEASE)).claim_id == new.claim_id

    async def test_what_runs_or_is_not_there_cannot_be_settled(self, store: EffectStore) -> None:
        claim = a_claim(an_id())
        with pytest.raises(EffectSettled, match="nobody has claimed it"):
            await store.settle(claim.effect_id, 1, "operator")
        await store.claim(claim, LEASE)
        for word in (store.settle(claim.effect_id, 1, "operator"), store.release(claim.effect_id)):
            with pytest.raises(EffectSettled, match="is RUNNING"):
                await word

    async def test_effects_are_listed_newest_first(self, store: EffectStore) -> None:
        claims = [a_claim(an_id(str(n))) for n in range(3)]
        for claim in claims:
            await store.claim(claim, LEASE)
        await store.record(claims[1].effect_id, claims[1].claim_id, 1)
        await store.claim(a_claim(an_id(agent_id="payer-2")), NO_LEASE)
        keys = [one.effect_id.key for one in await store.list(agent_id="payer-1")]
        assert keys == ["2", "1", "0"]
        assert [one.effect_id.key for one in await store.list(states=[EffectState.MADE])] == ["1"]
        assert [one.effect_id.agent_id for one in await store.list(states=[EffectState.UNKNOWN])] == ["payer-2"]
        assert [one.effect_id for one in await store.list(packet_id=claims[0].effect_id.packet_id)] == [
            claims[0].effect_id
        ]
        assert len(await store.list(limit=2)) == 2

    async def test_what_nobody_can_ask_for_again_is_forgotten(self, store: EffectStore) -> None:
        made, fresh = (a_claim(an_id(key), expired_for=age) for key, age in (("old", 2 * A_DAY), ("fresh", -A_DAY)))
        unknown = a_claim(an_id("unknown"), expired_for=2 * A_DAY)
        foreign = a_claim(an_id(agent_id="payer-2"), expired_for=2 * A_DAY)
        for claim in (made, fresh, foreign):
            await store.claim(claim, LEASE)
            await store.record(claim.effect_id, claim.claim_id, 1)
        await store.claim(unknown, NO_LEASE)
        assert await store.purge("payer-1", 3 * A_DAY) == 0
        assert await store.purge("payer-1", A_DAY) == 1
        left = {one.effect_id for one in await store.list()}
        assert left == {fresh.effect_id, unknown.effect_id, foreign.effect_id}


class EffectStoreOfThreadsSuite(EffectStoreSuite):
    """What a store promises beyond one event loop: plain tools call it from threads, each with its loop."""

    async def test_one_of_many_threads_gets_it_and_the_others_its_result(self, store: EffectStore) -> None:
        effect_id, made = an_id(), list[UUID]()

        def act(_: int) -> object:
            claim = a_claim(effect_id)
            kept = asyncio.run(store.claim(claim, LEASE))
            if kept.claim_id == claim.claim_id:
                made.append(claim.claim_id)
                asyncio.run(store.record(effect_id, claim.claim_id, "made"))
            return kept.claim_id

        with ThreadPoolExecutor(16) as threads:
            seen_by = await asyncio.to_thread(lambda: set(threads.map(act, range(64))))
        assert (len(made), seen_by) == (1, {made[0]})
        assert (await seen(store, effect_id)).result == "made"


class TestMemoryEffectStore(EffectStoreOfThreadsSuite):
    @pytest.fixture
    def store(self) -> EffectStore:
        return InMemoryEffectStore()


class TestSQLiteEffectStore(EffectStoreOfThreadsSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[EffectStore]:
        store = SQLiteEffectStore(tmp_path / "effects.db")
        yield store
        store.close()

    @pytest.fixture
    def other(self, store: EffectStore, tmp_path: Path) -> Iterator[EffectStore]:
        """Another connection to the same file, as another process has it."""
        other = SQLiteEffectStore(tmp_path / "effects.db")
        yield other
        other.close()

    async def test_two_connections_see_one_claim(self, store: EffectStore, other: EffectStore) -> None:
        claim, late = a_claim(effect_id := an_id()), a_claim(effect_id)
        await store.claim(claim, LEASE)
        assert (await other.claim(late, LEASE)).claim_id == claim.claim_id
        await store.record(effect_id, claim.claim_id, "made")
        assert (await seen(other, effect_id)).result == "made"

    async def test_it_is_there_when_the_file_is_opened_again(self, store: SQLiteEffectStore) -> None:
        claim = a_claim(an_id())
        await store.claim(claim, LEASE)
        store.close()
        assert (await seen(store, claim.effect_id)).claim_id == claim.claim_id


@pytest.mark.postgres
class TestPostgresEffectStore(EffectStoreSuite):
    @pytest.fixture
    async def store(self, app_database_url: str) -> AsyncIterator[EffectStore]:
        pool = await open_pool(app_database_url)
        yield PostgresEffectStore(pool)
        await pool.close()

    async def test_its_ids_are_those_of_python(self, store: EffectStore) -> None:
        """The driver's own are no JSON: a handler that catches an error of ctx.once could not wait."""
        claim = a_claim(an_id())
        kept = await store.claim(claim, LEASE)
        assert type(kept.effect_id.packet_id) is type(kept.claim_id) is UUID

    async def test_the_role_of_agents_is_enough(self, app_database_url: str) -> None:
        pool = await open_pool(app_database_url, max_size=1)
        await pool.execute("SET ROLE apc_agent")
        store, claim = PostgresEffectStore(pool), a_claim(an_id(), expired_for=2 * A_DAY)
        await store.claim(claim, NO_LEASE)
        await store.settle(claim.effect_id, 1, "operator")
        assert await store.purge("payer-1", A_DAY) == 1
        await pool.close()

    async def test_a_store_that_is_away_says_so_or_waits(self, app_database_url: str) -> None:
        pool = await open_pool(app_database_url)
        await pool.close()
        with pytest.raises(StateUnavailable, match="the effect store does not answer"):
            await PostgresEffectStore(pool, is_patient=False).get(an_id())
