"""The scripted chat of 200 turns: never above the limit, nothing lost, and the same when it is killed on its way."""

import asyncio
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic_ai.usage import RunUsage
from tests.support.waiting import until

from apc_minds.context import ContextSession, ResourceClass, Turn
from apc_minds.llm import Dialogue
from apc_minds.memory import InMemoryMemoryStore, PostgresMemoryStore

from .scripted_chat import MAX_TOKENS, MESSAGES, OWNER, dialogue, message_of

KILLS = 2
CLIENTS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
"""


def shape_of(session: ContextSession) -> Any:
    """Return all of a session that is not a time."""
    window = session.window
    turns = [(turn.resource_id, turn.role, turn.content, window.class_of(turn)) for turn in window.all_turns()]
    return turns, {key: fold.how for key, fold in window.folded.items()}, session.compressions, session.state


def unasked(tokens: int) -> None:
    """Anyone who only looks asks no model."""
    raise AssertionError("the model was asked")


async def session_of(talk: Dialogue) -> ContextSession:
    return (await talk._open(RunUsage())).session


@dataclass
class Undisturbed:
    """The script in one process: what the model was asked with, and every user turn as it came."""

    talk: Dialogue
    asked: list[int]
    said: dict[str, Turn]


@pytest.fixture(scope="module")
def undisturbed() -> Undisturbed:
    """Played once."""

    async def play() -> Undisturbed:
        asked: list[int] = []
        chat = Undisturbed(dialogue(InMemoryMemoryStore(), asked.append), asked, {})
        await chat.talk.begin()
        for number in range(MESSAGES):
            await chat.talk.say(message_of(number))
            turns = (await session_of(chat.talk)).window.all_turns()
            chat.said |= {turn.resource_id: turn for turn in turns if turn.content == message_of(number)}
        return chat

    return asyncio.run(play())


async def test_a_scripted_chat_of_200_turns_through_the_real_loop(undisturbed: Undisturbed) -> None:
    """Never above the limit when the model is asked; preserved turns intact, or paged out and restored."""
    asked, said = undisturbed.asked, undisturbed.said
    session = await session_of(undisturbed.talk)
    assert len(said) == len(asked) == MESSAGES
    assert max(asked) <= MAX_TOKENS
    folded = session.window.folded
    assert folded and session.compressions > 5
    for resource_id, turn in said.items():
        assert session.window.linearity.get_class(resource_id) is ResourceClass.PRESERVED
        if resource_id not in folded:
            assert turn.to_bytes() in [one.to_bytes() for one in session.window.all_turns()]
    restored = await session.expand(list(said))
    assert not restored.missing
    kept = {one.resource_id: one.to_bytes() for one in session.window.all_turns()}
    assert all(kept[resource_id] == turn.to_bytes() for resource_id, turn in said.items())


async def until_alone(pool: asyncpg.Pool) -> None:
    """Wait for the end of the last statement of a killed process: the server may be about to commit it."""

    async def are_gone() -> bool:
        clients: int = await pool.fetchval(CLIENTS)
        return clients <= 1

    await until(are_gone)


async def run_until(database_url: str, lines: int | None) -> list[list[str]]:
    """Return what a process of the script tells; it is killed with SIGKILL after so many lines, None = never."""
    script = Path(__file__).with_name("scripted_chat.py")
    process = await asyncio.create_subprocess_exec(sys.executable, script, database_url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    told: list[list[str]] = []
    try:
        async for line in process.stdout:
            told.append(line.decode().split())
            if len(told) == lines:
                process.kill()
    except BaseException:
        process.kill()
        raise
    finally:
        code = await process.wait()
    assert code == (0 if lines is None else -signal.SIGKILL)
    return told


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(300)  # four processes, and each has much to import
async def test_the_scripted_chat_is_the_same_when_its_process_is_killed(
    postgres_url: str, undisturbed: Undisturbed
) -> None:
    """SIGKILL wherever it stands, KILLS times; what the database has then is what the next process goes on with."""
    reference = await session_of(undisturbed.talk)
    chance, told = random.Random(200), []
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        memory = PostgresMemoryStore(pool, OWNER)
        for _ in range(KILLS):
            told += await run_until(postgres_url, chance.randint(1, 2 * MESSAGES // KILLS))
            await until_alone(pool)
            # A reader of the same database sees what the killed process kept, and twice the same.
            seen = [await dialogue(memory, unasked).props() for _ in range(2)]
            assert seen[0] == seen[1]
            last_said = max((int(number) for what, number in told if what == "said"), default=-1)
            assert seen[0].revision in (last_said + 2, last_said + 3)
        told += await run_until(postgres_url, None)
        survivor = await session_of(dialogue(memory, unasked))
        assert shape_of(survivor) == shape_of(reference)
        assert (await survivor.expand()).missing == ()
        assert (await reference.expand()).missing == ()
        assert shape_of(survivor) == shape_of(reference)
    asked = [int(tokens) for what, tokens in told if what == "asked"]
    assert max(asked) <= MAX_TOKENS
    assert MESSAGES <= len(asked) <= MESSAGES + KILLS
