"""Search and the list of runs over the API: what is found, in which order, how it goes on, and for whom."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.traffic.packets import make_packet, make_start
from tests.web.conftest import WebBench

from apc_contracts import IdeaPayload, Packet
from apc_contracts.vocabulary import RunPhase


@pytest.fixture
async def named(bench: WebBench, idea: IdeaPayload) -> AsyncIterator[WebBench]:
    """A run of team desk for customer 7, with four ideas about refunds, one of them refused."""
    names = {"team": "desk", "customer": 7, "note": "<img src=x>"}
    opening = make_start().model_copy(update={"metadata": names})
    async with bench.house.persister(), bench.house.gate():
        await bench.house.discover(opening)
        for number in range(3):
            await bench.house.publish(said(idea, opening, f"Refund order A-471{number}, 80.50 euros"))
        late = said(idea, opening, "a refund that comes too late", phase=RunPhase.PROMOTION)
        await bench.house.publish(late)
        await bench.house.quiet()
        await bench.house.followed()
        yield bench


def said(idea: IdeaPayload, opening: Packet, text: str, phase: RunPhase = RunPhase.DISCOVERY) -> Packet:
    payload = idea.model_copy(update={"intent": text})
    return make_packet("red-1", payload, ("sentinel",), phase=phase, parent=opening, keys=(text[-12:],))


async def search(bench: WebBench, **given: Any) -> list[str]:
    """Return the lines of what is found."""
    return [packet["line"] for packet in (await bench.get("/search", **given))["packets"]]


async def test_words_ends_of_ids_and_names_are_found(named: WebBench) -> None:
    everything = await search(named, text="refund")
    assert len(everything) == 4 and "too late" in everything[0] and "A-4710" in everything[-1], "newest first"
    assert await search(named, text="REFUND 4711") == [everything[2]]
    assert await search(named, text="refu A-471") == everything[1:], "the beginnings of words"
    assert len(await search(named, text="euros", agent="red-1")) == 3
    assert await search(named, text="euros", agent="blue-1") == []
    assert await search(named, code="PHASE_MISMATCH", agent="red-1") == everything[:1]
    (packet,) = (await named.get("/search", text="A-4711"))["packets"]
    for end in (packet["packet_id"], packet["packet_id"][-8:], f"…{packet['packet_id'][-6:]}".upper()):
        assert await search(named, text=end) == [packet["line"]], end
    assert len(await search(named, text="s-1 refund")) == 4, "the session's id"
    assert await search(named, text="nowhere") == []


async def test_pages_go_on_where_the_last_one_ended(named: WebBench) -> None:
    whole = await search(named, text="refund")
    lines, after = [], None
    while True:
        page = await named.get("/search", text="refund", limit=1, after=after)
        lines += [packet["line"] for packet in page["packets"]]
        assert bool(page["runs"]) <= (after is None)
        after = page["next"]
        if after is None:
            break
    assert lines == whole
    assert (await named.get("/search", 400, text="other", after=after or "x"))["code"] == "BAD_CURSOR"


async def test_times_narrow_a_search(named: WebBench) -> None:
    newest = (await named.get("/search", text="refund"))["packets"][0]["judged_at"]
    since, until = [await search(named, text="refund", **{name: newest}) for name in ("since", "until")]
    assert since and until and since + until == await search(named, text="refund")


async def test_a_run_is_found_by_its_names(named: WebBench) -> None:
    (run,) = (await named.get("/runs", tag="customer=7"))["items"]
    assert (run["team"], run["tags"], run["outcome"]) == ("desk", ["customer=7", "note=<img src=x>"], "running")
    assert (run["title"], run["agents"], run["contract"]) == (None, 3, "apc-1.0"), "a brief without a claim"
    fitting: list[dict[str, Any]] = [{"team": "desk"}, {"agent": "red-1"}, {"text": "customer 7"}, {"text": "un-1"}]
    for given in [*fitting, {"outcome": "running"}]:
        assert (await named.get("/runs", **given))["items"] == [run], given
    others: list[dict[str, Any]] = [{"team": "des"}, {"tag": "customer=8"}, {"outcome": "halted"}]
    for given in [*others, {"since": "2999-01-01T00:00:00Z"}]:
        assert (await named.get("/runs", **given))["items"] == [], given
    found = await named.get("/search", text="customer 7")
    assert [one["run_id"] for one in found["runs"]] == ["run-1"] and found["behind"] == found["unread"] == 0
    assert await named.get("/runs/run-1") == run


async def test_nothing_to_search_for_is_said(named: WebBench) -> None:
    assert "nothing to search for" in (await named.get("/search", 422))["detail"]
    assert (await named.get("/search", 422, text="a " * 60))["field"] == "text"
    assert (await named.get("/search", 422, text="x" * 201))["field"] == "text"


@pytest.mark.parametrize("sort", ["started", "-started", "cost", "-duration", "team", "-outcome", "agents"])
async def test_runs_are_sorted_over_all_pages(named: WebBench, sort: str) -> None:
    await named.house.pool.execute(
        "INSERT INTO apc_log.sessions SELECT 's-' || n, shard, epoch, batch_no, 'run-' || n, state, true, 1, 0, 0, 0,"
        " document || jsonb_build_object('spent', jsonb_build_object('cost', n % 3)), updated_at + n * interval '1 s'"
        " FROM apc_log.sessions, generate_series(2, 6) AS n"
    )
    await named.house.pool.execute("SELECT apc_log.write_card('run-' || n) FROM generate_series(2, 6) AS n")
    whole = [run["run_id"] for run in (await named.get("/runs", sort=sort))["items"]]
    assert len(whole) == 6
    paged, after = list[str](), None
    while True:
        page = await named.get("/runs", sort=sort, limit=2, after=after)
        paged += [run["run_id"] for run in page["items"]]
        if (after := page["next"]) is None:
            break
    assert paged == whole
    await named.house.pool.execute("DELETE FROM apc_log.sessions WHERE run_id <> 'run-1'")  # they are in no entry
