"""One suite for every schedule store."""

from collections.abc import AsyncIterator

import pytest
from tests.agents.scheduling.conftest import DAY, SEVEN, make_agent

from apc_agents.scheduling import InMemoryScheduleStore, PostgresScheduleStore, ScheduleStore, list_schedules
from apc_bus.database import open_pool


class ScheduleStoreSuite:
    """What a ScheduleStore promises."""

    async def test_a_schedule_begins_where_it_is_registered_and_goes_on(self, store: ScheduleStore) -> None:
        schedules = make_agent().schedules
        await store.register("clerk-1", schedules, SEVEN)
        assert await store.fired_until("clerk-1", "report") == SEVEN
        await store.move("clerk-1", schedules["report"], SEVEN, SEVEN + DAY)
        await store.register("clerk-1", schedules, SEVEN + 9 * DAY)
        assert await store.fired_until("clerk-1", "report") == SEVEN + DAY

    async def test_who_read_an_old_row_moves_nothing(self, store: ScheduleStore) -> None:
        schedules = make_agent().schedules
        await store.register("clerk-1", schedules, SEVEN)
        await store.move("clerk-1", schedules["report"], SEVEN, SEVEN + 2 * DAY)
        await store.move("clerk-1", schedules["report"], SEVEN, SEVEN + DAY)
        assert await store.fired_until("clerk-1", "report") == SEVEN + 2 * DAY

    async def test_one_at_a_time_has_the_turn(self, store: ScheduleStore) -> None:
        async with store.turn("clerk-1", "report") as first, store.turn("clerk-1", "report") as second:
            assert (first, second) == (True, False)
            async with store.turn("clerk-1", "other") as other, store.turn("clerk-2", "report") as of_another:
                assert (other, of_another) == (True, True)
        async with store.turn("clerk-1", "report") as again:
            assert again

    @pytest.mark.parametrize("change", [{"line": "1 7 * * *"}, {"timezone": "Asia/Tokyo"}])
    async def test_another_line_begins_now(self, store: ScheduleStore, change: dict[str, str]) -> None:
        await store.register("clerk-1", make_agent().schedules, SEVEN)
        await store.register("clerk-1", make_agent(**change).schedules, SEVEN + DAY)
        assert await store.fired_until("clerk-1", "report") == SEVEN + DAY

    async def test_what_is_registered_no_more_is_gone(self, store: ScheduleStore) -> None:
        await store.register("clerk-1", make_agent().schedules, SEVEN)
        await store.register("clerk-2", make_agent().schedules, SEVEN)
        await store.register("clerk-1", make_agent(name="other").schedules, SEVEN)
        assert await store.fired_until("clerk-1", "report") is None
        assert await store.fired_until("clerk-2", "report") == SEVEN


class TestMemoryScheduleStore(ScheduleStoreSuite):
    @pytest.fixture
    def store(self) -> ScheduleStore:
        return InMemoryScheduleStore()


@pytest.mark.postgres
class TestPostgresScheduleStore(ScheduleStoreSuite):
    @pytest.fixture
    async def store(self, app_database_url: str) -> AsyncIterator[ScheduleStore]:
        pool = await open_pool(app_database_url)
        yield PostgresScheduleStore(pool)
        await pool.close()

    async def test_the_role_of_agents_is_enough(self, app_database_url: str) -> None:
        pool = await open_pool(app_database_url, max_size=1)
        await pool.execute("SET ROLE apc_agent")
        store, schedules = PostgresScheduleStore(pool), make_agent().schedules
        await store.register("clerk-1", schedules, SEVEN)
        await store.move("clerk-1", schedules["report"], SEVEN, SEVEN + DAY)
        await store.register("clerk-1", {}, SEVEN)
        assert await store.fired_until("clerk-1", "report") is None
        await pool.close()

    async def test_the_row_says_when_the_next_firing_is(self, app_database_url: str) -> None:
        pool = await open_pool(app_database_url)
        store, schedules = PostgresScheduleStore(pool), make_agent(timezone="Europe/Berlin").schedules
        await store.register("clerk-1", schedules, SEVEN)
        await store.move("clerk-1", schedules["report"], SEVEN, SEVEN + DAY)
        (row,) = await list_schedules(pool, "clerk-1")
        assert (row["line"], row["timezone"], row["misfire"]) == ("0 7 * * *", "Europe/Berlin", "once")
        assert row["next_at"].isoformat() == "2027-03-03T06:00:00+00:00"
        assert await list_schedules(pool, "clerk-2") == []
        await pool.close()
