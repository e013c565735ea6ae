"""Rates, days and the page of one agent, over a session that a real gate judged."""

from datetime import UTC, datetime, timedelta

from tests.web.conftest import WebBench

from apc_persister.follower import Follower


async def test_the_last_minute_is_counted_in_the_log(told: WebBench) -> None:
    found = await told.get("/rates")
    assert found["packets"] == sum(point["packets"] for point in found["points"]) > 5
    assert found["refused"] == sum(one["count"] for one in found["refusals"]) > 0
    assert found["step_seconds"] == 2.0 and found["behind"] == 0


async def test_longer_ranges_are_counted_by_minutes(told: WebBench) -> None:
    now, live = datetime.now(UTC), await told.get("/rates")
    hour = (now - timedelta(hours=1)).isoformat()
    await Follower(told.house.pool).catch_up()
    found = await told.get("/rates", since=hour)
    assert (found["packets"], found["refused"], found["behind"]) == (live["packets"], live["refused"], 0)
    for since, until in (
        ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"),
        ("9999-12-31T23:59:59-14:00", None),
        (None, "0001-01-01T00:00:00+14:00"),
    ):
        assert (await told.get("/rates", since=since, until=until))["packets"] in (0, live["packets"])
        await told.get("/agent-days", since=since, until=until)
    assert (await told.get("/rates", 422, since="yesterday"))["field"] == "since"


async def test_times_that_nobody_can_reckon_with_are_no_failure(told: WebBench) -> None:
    for path in ("/runs", "/approvals/answered", "/issues", "/issues/occurrences", "/agent-days", "/rates"):
        for name in ("since", "until"):
            for time in ("0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"):
                found = await told.client.get(f"/api/v1{path}", params={name: time})
                assert found.status_code in (200, 422), (path, name, time, found.text)


async def test_an_agent_is_told_in_full(told: WebBench) -> None:
    await Follower(told.house.pool).catch_up()
    found = await told.get("/agents/red-1")
    assert found["agent"]["agent_id"] == "red-1" and found["behind"] == 0
    today = found["days"][0]
    assert (today["agent_id"], today["packets"], today["refused"]) == ("red-1", 3, 1)
    assert [one["sender"] for one in found["latest"]].count("red-1") == 3
    times = [one["at"] for one in found["latest"]]
    assert times == sorted(times, reverse=True)
    days = await told.get("/agent-days")
    assert today in days["items"] and days["is_complete"]
    assert (await told.get("/agent-days", agent_id="red-1"))["items"] == [today]
    for name in ("nobody", "' OR 1=1 --", "<script>", "\u202e"):
        assert (await told.get(f"/agents/{name}", 404))["code"] == "NOT_FOUND"
