"""A start is one act: START and its input go together, and a start that came to nothing is begun again by its key.

The fixture `house` replays everything at the end of each test and compares the projections.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel
from tests.orchestrator.conftest import House, house
from tests.orchestrator.judging.test_content import register

from apc_agents import Agent, HandlerContext, Team, message
from apc_agents.typed import payload_of
from apc_bus.topology import gate_queue
from apc_client import Client, KeyConflict, SessionRefused
from apc_client import client as starting
from apc_client.client import KeyedStart
from apc_client.run_names import RunNames
from apc_client.sending import send_packet
from apc_contracts import MessagePayload
from apc_contracts.errors import InputUnusable
from apc_contracts.identity.registry import Registration
from apc_contracts.vocabulary import Right
from apc_log.queries import get_session
from apc_log.queries.packets import PacketRow

__all__ = ["house"]

KEY = "job-1"
SESSIONS = "SELECT count(*) FROM apc_log.sessions"
HALTED = "SELECT document ->> 'halt_reason' FROM apc_log.sessions WHERE session_id = $1"
STATES = "SELECT state, count(*) FROM apc_log.sessions GROUP BY state"


@message("job/1")
class Job(BaseModel):
    text: str


def team(**options: Any) -> Team:
    agent = Agent("red-1", role="role", swarm="red")

    @agent.on(Job)
    async def take(job: Job, ctx: HandlerContext) -> None: ...

    return Team("jobs", agents=[agent], entry="red-1", **options)


async def test_an_empty_key_is_no_key_and_nothing_is_sent(house: House) -> None:
    with pytest.raises(InputUnusable, match="the key of a start is empty: "):
        await client(house).start(team(), Job(text="a"), key="")


def client(house: House) -> Client:
    librarian = Registration("librarian", "agent.librarian", "role", "library", rights=frozenset({Right.OPERATE}))
    return Client(house.client("agent.librarian"), house.pool, librarian, 1)


@pytest.fixture
async def ready(house: House) -> AsyncIterator[House]:
    async with house.persister(), house.gate():
        await house.register()
        yield house


@pytest.fixture
async def taught(ready: House) -> House:
    """The agents' schema is registered."""
    await register(ready, team().documents["job/1"], "job/1")
    return ready


async def open_only(house: House, team: Team, text: str = "a") -> str:
    """Send START and die before the input, as release 0.1.0 could; return the session's id."""
    payload = payload_of(Job(text=text))
    assert isinstance(payload, MessagePayload)
    opener = client(house)
    attempt = KeyedStart("librarian", "jobs", KEY, payload).attempt(0)
    answer = await send_packet(opener._bus, house.pool, opener._opening(team, attempt, RunNames()), 1)
    assert answer.code is None
    return attempt.session_id


async def ended(house: House, session_id: str) -> str:
    async def has_ended() -> bool:
        row = await get_session(house.pool, session_id)
        return row is not None and row.is_terminal

    await house.until(has_ended)
    return str(await house.pool.fetchval(HALTED, session_id))


async def test_a_start_that_was_interrupted_goes_on_while_its_session_is_open(taught: House) -> None:
    session_id = await open_only(taught, team())
    session = await client(taught).start(team(), Job(text="a"), key=KEY)
    assert session.session_id == session_id
    assert await taught.pool.fetchval(SESSIONS) == 1


async def test_a_start_whose_session_ended_without_input_is_begun_again(taught: House) -> None:
    brief = team(deadline=timedelta(milliseconds=200))
    first = await open_only(taught, brief)
    await ended(taught, first)
    second = await client(taught).start(team(), Job(text="b"), key=KEY)
    assert second.session_id != first
    assert (await client(taught).start(team(), Job(text="b"), key=KEY)).session_id == second.session_id
    with pytest.raises(KeyConflict, match="was used for another input"):
        await client(taught).start(team(), Job(text="a"), key=KEY)
    assert await taught.pool.fetchval(SESSIONS) == 2


async def test_refused_work_ends_its_session_at_once_and_leaves_the_key(ready: House) -> None:
    with pytest.raises(SessionRefused, match="CONTENT_INVALID"):
        await client(ready).start(team(), Job(text="a"), key=KEY)
    (refused,) = await ready.pool.fetch("SELECT session_id FROM apc_log.sessions")
    wanted = "NOT_STARTED the MESSAGE with which librarian opened it was refused: CONTENT_INVALID at payload.schema"
    assert await ended(ready, refused["session_id"]) == wanted
    await register(ready, team().documents["job/1"], "job/1")
    session = await client(ready).start(team(), Job(text="a"), key=KEY)
    assert session.session_id != refused["session_id"]
    assert {row["state"]: row["count"] for row in await ready.pool.fetch(STATES)} == {"HALTED": 1, "WORKING": 1}


@pytest.mark.parametrize("refusals", [1, 2, 5])
async def test_a_key_outlasts_any_number_of_refusals(taught: House, refusals: int) -> None:
    for _ in range(refusals):
        with pytest.raises(SessionRefused, match="UNKNOWN_CONTRACT"):
            await client(taught).start(team(contract="none"), Job(text="a"), key=KEY)
    started = [await client(taught).start(team(), Job(text="a"), key=KEY) for _ in range(2)]
    assert started[0].session_id == started[1].session_id
    assert await taught.pool.fetchval(SESSIONS) == 1


@pytest.mark.parametrize("key", [None, KEY])
async def test_an_input_that_is_too_large_opens_nothing(taught: House, key: str | None) -> None:
    with pytest.raises(SessionRefused, match=r"TOO_LARGE at \$") as refused:
        await client(taught).start(team(), Job(text="x" * 300_000), key=key)
    assert refused.value.remedy
    await taught.quiet()
    assert await taught.pool.fetchval(SESSIONS) == 0
    large = await client(taught).start(team(), Job(text="x" * 200_000), key=key)
    assert await taught.pool.fetchval(HALTED, large.session_id) is None


async def started_at_once(house: House, *texts: str) -> list[Any]:
    """Start under one key from several processes, none of which finds another's start in the log."""
    starts = [asyncio.create_task(client(house).start(team(), Job(text=text), key=KEY)) for text in texts]

    async def are_sent() -> bool:
        return (await house.client("operator").depth(gate_queue(0))).messages == 2 * len(texts)

    await house.until(are_sent)
    async with house.persister(), house.gate():
        return await asyncio.gather(*starts, return_exceptions=True)


async def make_ready(house: House) -> None:
    """Register agents and schema, and stop gate and log writer again."""
    async with house.persister(), house.gate():
        await house.register()
        await register(house, team().documents["job/1"], "job/1")


async def test_of_two_inputs_that_were_sent_at_once_under_a_key_one_is_a_conflict(house: House) -> None:
    await make_ready(house)
    first, second, same = await started_at_once(house, "a", "b", "a")
    # The input that reaches the broker first is the one that counts.
    won, lost = ([first, same], [second]) if isinstance(second, KeyConflict) else ([second], [first, same])
    (session_id,) = {start.session_id for start in won}
    assert [type(conflict) for conflict in lost] == [KeyConflict] * len(lost)
    assert all(f"was used for another input, in session {session_id}" in str(conflict) for conflict in lost)
    assert await house.pool.fetchval(HALTED, session_id) is None


async def unopened(pool: asyncpg.Pool, rows: Sequence[PacketRow]) -> Sequence[PacketRow]:
    """What a process without the master key reads."""
    return rows


async def test_an_encrypted_input_of_ones_own_is_told_from_anothers_without_the_key(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APC_SUBJECT_MASTER_KEY", b64encode(b"k" * 32).decode())
    monkeypatch.setenv("APC_ENCRYPT_BODIES", "true")
    await make_ready(house)
    monkeypatch.setattr(starting, "opened_bodies", unopened)
    outcomes = await started_at_once(house, "a", "b")
    (lost,) = (outcome for outcome in outcomes if isinstance(outcome, InputUnusable))
    (won,) = (outcome for outcome in outcomes if outcome is not lost)
    assert await house.pool.fetchval(HALTED, won.session_id) is None
    assert "set APC_SUBJECT_MASTER_KEY to compare it" in str(lost)
