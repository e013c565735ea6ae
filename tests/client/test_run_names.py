"""A run is found by what it was given at its start, id and tags; what cannot be used is refused before it is sent."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from tests.support.apc_command import ApcCommand
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext, Team, message
from apc_client import TeamTestClient
from apc_client.run_names import RunNames
from apc_contracts.errors import InputUnusable
from apc_log.queries.run_cards import RunsWanted, page_of_cards
from apc_log.queries.search import read_lag


@message("named-refund/1")
class NamedRefund(BaseModel):
    euros: float
    order: str


def _desk() -> Team:
    desk = Agent("desk", role="clerk", swarm="support")

    @desk.on(NamedRefund)
    async def pay(refund: NamedRefund, ctx: HandlerContext) -> None:
        await ctx.complete(refund)

    return Team("refund desk", agents=[desk], entry="desk", input=NamedRefund)


async def test_runs_are_told_apart_by_team_title_and_tags() -> None:
    async with TeamTestClient(_desk()) as team:
        pool = team.client._pool
        for order, customer in (("A-4711", 7), ("A-4712", 8)):
            session = await team.start(
                NamedRefund(euros=80.5, order=order),
                run_id="nightly-1" if customer == 7 else None,
                metadata={"customer": customer, "is_urgent": True},
            )
            await session.result(timeout=30)

        async def is_followed() -> bool:
            return not await read_lag(pool, "run_cards")

        await until(is_followed)
        runs = await page_of_cards(pool, RunsWanted(team="refund desk"), sorted_by="started")
        assert [(run.title, run.tags) for run in runs] == [
            ("A-4712", ["customer=8", "is_urgent=true"]),
            ("A-4711", ["customer=7", "is_urgent=true"]),
        ]
        (run,) = await page_of_cards(pool, RunsWanted(tag="customer=7"))
        assert (run.run_id, run.outcome, run.agents, run.contract) == ("nightly-1", "closed", ["desk"], "task")
        assert run.ended_at is not None and run.ended_at >= run.opened_at


async def test_a_run_may_have_several_sessions_and_a_key_keeps_its_run() -> None:
    async with TeamTestClient(_desk()) as team:
        first = await team.start(NamedRefund(euros=1, order="A-1"), key="a", run_id="batch", metadata={"day": 1})
        again = await team.start(NamedRefund(euros=1, order="A-1"), key="a", run_id="other", metadata={"day": 2})
        other = await team.start(NamedRefund(euros=1, order="A-2"), run_id="batch")
        assert again.session_id == first.session_id != other.session_id
        for session in (first, other):
            await session.result(timeout=30)
        rows = await team.client._pool.fetch("SELECT DISTINCT run_id FROM apc_log.sessions")
        assert [row["run_id"] for row in rows] == ["batch"]


@pytest.mark.parametrize(
    ("run_id", "metadata", "said"),
    [
        ("", {}, "the run's id '' cannot be used"),
        ("a b", {}, "the run's id 'a b'"),
        ("x" * 65, {}, "at most 64"),
        ("<b>", {}, "cannot be used"),
        (None, {"team": "x"}, "'team' is the team's own name"),
        (None, {"a=b": 1}, "the tag 'a=b' cannot be used"),
        (None, {"": 1}, "the tag '' cannot be used"),
        (None, {"k": ""}, "the value of tag k cannot be used"),
        (None, {"k": "a\nb"}, "in one line"),
        (None, {"k": "\x1b[31m"}, "in one line"),
        (None, {"k": "x" * 201}, "at most 200"),
        (None, {"k": float("nan")}, "tag k"),
        (None, {"k": 2**60}, "tag k"),
        (None, {"k": ["x"]}, "tag k"),
        (None, {f"k{number}": 1 for number in range(32)}, "at most 31 tags (got 32)"),
    ],
)
def test_what_cannot_be_used_is_said(run_id: str | None, metadata: dict[str, Any], said: str) -> None:
    with pytest.raises(InputUnusable) as caught:
        RunNames.of(run_id, metadata)
    assert said in str(caught.value) and "\x1b" not in str(caught.value)


@pytest.mark.long
async def test_the_command_gives_a_run_its_names(tmp_path: Path) -> None:
    apc = ApcCommand(tmp_path)
    (tmp_path / "named_desk.py").write_text(
        "from pydantic import BaseModel\nfrom apc_agents import Agent, HandlerContext, Team, message\n"
        '@message("named-note/1")\nclass Note(BaseModel):\n    text: str\n'
        'desk = Agent("desk", role="clerk", swarm="support")\n'
        "@desk.on(Note)\nasync def take(note: Note, ctx: HandlerContext) -> None:\n    await ctx.complete(note)\n"
        'team = Team("notes", agents=[desk], entry="desk", input=Note)\n'
    )
    (tmp_path / "input.json").write_text('{"text": "order A-4711 came late"}')
    run = ("run", "named_desk:team", "--input", "input.json")
    refused = apc(*run, "--tag", "nothing")
    assert refused.returncode == 2 and "KEY=VALUE" in refused.stderr
    done = apc(*run, "--run-id", "night-1", "--tag", "customer=7")
    assert done.returncode == 0, done.stderr
    (row,) = orjson.loads(apc("session", "list", "--json").stdout)
    assert (row["run_id"], row["team"], row["title"], row["tags"]) == (
        "night-1",
        "notes",
        "order A-4711 came late",
        ["customer=7"],
    )
    (found,) = orjson.loads(apc("packet", "search", "a-4711", "--agent", "desk", "--json", "--limit", "1").stdout)
    assert "A-4711" in found["says"] and found["run_id"] == "night-1"
    listed = apc("session", "list").stdout
    assert "notes" in listed and "order A-4711" in listed
