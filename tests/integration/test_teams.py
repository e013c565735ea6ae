"""Sessions of a team from ordinary code: started, followed, ended, refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, SecretStr

from apc_agents import Agent, HandlerContext, Team, message
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_cli.errors import InputUnusable
from apc_client import Client, KeyConflict, ResultUnusable, SessionHalted, SessionRefused
from apc_client.in_process import OPERATOR, run_embedded
from apc_contracts import Budgets


@message("pull-request/1")
class PullRequest(BaseModel):
    number: int
    diff: str


@message("finding/1")
class Finding(BaseModel):
    file: str
    severity: Literal["low", "high"]


@message("review/1")
class Review(BaseModel):
    number: int
    merge: bool
    findings: list[Finding]


def _team(**options: Any) -> Team:
    lead = Agent("lead", role="lead", swarm="review")
    reader = Agent("reader", role="reader", swarm="review")

    @lead.on(PullRequest)
    async def begin(request: PullRequest, ctx: HandlerContext) -> None:
        ctx.state["number"] = request.number
        await ctx.emit(request, to="reader")

    @reader.on(PullRequest)
    async def read(request: PullRequest, ctx: HandlerContext) -> Finding:
        if "raise" in request.diff:
            raise ValueError("unreadable")
        return Finding(file="a.py", severity="high" if "password" in request.diff else "low")

    @lead.on(Finding)
    async def decide(finding: Finding, ctx: HandlerContext) -> None:
        await ctx.complete(
            Review(number=ctx.state["number"], merge=finding.severity == "low", findings=[finding]),
        )

    return Team("review", agents=[lead, reader], entry="lead", **options)


@asynccontextmanager
async def _embedded(postgres_url: str, folder: Path, team: Team) -> AsyncIterator[Client]:
    settings = BusSettings(amqp_url=None, data_dir=folder)
    async with run_embedded(settings, DatabaseSettings(database_url=SecretStr(postgres_url))) as system:
        await system.register_schemas(team.documents)
        await system.start_agents(team.agents)
        async with system.registered_client() as own:
            yield Client(system.connect(OPERATOR), system.pool, own.registration, settings.shards, key=own.key)


async def test_in_one_process(postgres_url: str, tmp_path: Path) -> None:
    team = _team()
    async with _embedded(postgres_url, tmp_path, team) as client:
        session = await client.start(team, PullRequest(number=4711, diff="password"), key="pr-4711")
        review = await session.result(timeout=60)
        assert review == Review(number=4711, merge=False, findings=[Finding(file="a.py", severity="high")])
        events = [one async for one in session.events()]
        assert [one.packet_type for one in events if one.sender != "orchestrator"][:4] == [
            "SIGNAL",
            "MESSAGE",
            "MESSAGE",
            "MESSAGE",
        ]
        assert {one.verdict for one in events} == {"accepted"}

        again = await client.start(team, PullRequest(number=4711, diff="password"), key="pr-4711")
        assert again.session_id == session.session_id
        with pytest.raises(KeyConflict, match="'pr-4711' was used for another input"):
            await client.start(team, PullRequest(number=4712, diff=""), key="pr-4711")
        with pytest.raises(ResultUnusable, match="is review/1, not Finding"):
            await client.session(session.session_id).result(Finding, timeout=60)
        with pytest.raises(ResultUnusable, match="is review/1, not a model of the team"):
            await client.session(session.session_id).result(timeout=60)
        with pytest.raises(InputUnusable, match="lead, the entry of team review, has no handler of Review"):
            await client.start(team, Review(number=1, merge=True, findings=[]))
        with pytest.raises(TimeoutError):
            await client.session("nobody-knows-it").result(timeout=0.2)


async def test_a_failed_handler_and_a_refused_start_are_told(postgres_url: str, tmp_path: Path) -> None:
    team = _team()
    async with _embedded(postgres_url, tmp_path, team) as client:
        session = await client.start(team, PullRequest(number=1, diff="raise"))
        with pytest.raises(SessionHalted, match="HANDLER_FAILED"):
            await session.result(timeout=60)
        with pytest.raises(SessionRefused) as refused:
            await client.start(_team(budgets=Budgets(packets=1), contract="no-such"), PullRequest(number=1, diff=""))
        assert refused.value.code == "UNKNOWN_CONTRACT"
        assert refused.value.remedy
