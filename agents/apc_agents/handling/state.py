"""Where an agent's state is kept: one JSON document per (agent, session), with a revision."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

import asyncpg
import orjson

from apc_agents.errors import StateInvalid, StateStale, StateUnavailable
from apc_agents.memory.appending import load_state, save_state
from apc_agents.memory.conversation import NewMessages
from apc_agents.memory.errors import ConversationInvalid, MemoryUnavailable, OwnerForeign, StaleRevision, ValueInvalid
from apc_agents.memory.in_memory import InMemoryMemoryStore
from apc_agents.memory.statements import forget_states_with, insert_state, owned, read_states_with
from apc_agents.memory.store import DEFAULT_OWNER

STATE_KEY: Final = "ctx.state"
"""Under which the memory keeps an agent's state in a session (owner_id = session_id)."""


WAIT_PREFIX: Final = "ctx.wait/"
"""Under which it keeps the records of a handler that waits: the prefix, and the packet that started the handler."""


ANSWER_PREFIX: Final = "ctx.answer/"
"""Under which it keeps the ACKs and NACKs of what the agent has emitted: the prefix, the packet, and the answer."""
MAX_ANSWERS = 10_000
"""Packets whose answers are kept in memory."""


@dataclass(frozen=True, slots=True)
class SavedWait:
    """The records of a waiting handler, to be saved with the state; None = they are deleted."""

    cause: UUID
    record: bytes | None


@dataclass(frozen=True, slots=True)
class SavedAnswer:
    """An ACK or NACK as JSON text: a handler that runs again does not get it from its inbox a second time."""

    packet_id: UUID
    """The packet that it answers."""
    answer_id: UUID
    body: bytes

    @property
    def key(self) -> str:
        """Under which it is kept."""
        return f"{ANSWER_PREFIX}{self.packet_id}/{self.answer_id}"


class StateStore(Protocol):
    """Documents by (agent_id, session_id). A document is JSON text; a revision counts its saves from 1."""

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision; None when nothing was ever saved. Raises StateUnavailable."""
        ...

    async def save(
        self,
        agent_id: str,
        session_id: str,
        document: bytes,
        revision: int,
        messages: NewMessages | None = None,
        wait: SavedWait | None = None,
    ) -> int:
        """Replace the document if it still has this revision (0 = none yet); returns the new revision.

        `messages` are added to their conversation in the same transaction, and `wait` is saved in it. Durable when it
        returns. Raises StateStale, StateUnavailable, StateInvalid.
        """
        ...

    async def load_wait(self, agent_id: str, session_id: str, cause: UUID) -> bytes | None:
        """Return the records of a waiting handler; None when there are none. Raises StateUnavailable."""
        ...

    async def save_answer(self, agent_id: str, session_id: str, answer: SavedAnswer) -> None:
        """Keep an ACK or NACK, once. Durable when it returns. Raises StateUnavailable."""
        ...

    async def load_answers(self, agent_id: str, session_id: str, packet_id: UUID) -> list[bytes]:
        """Return the answers to a packet. Raises StateUnavailable."""
        ...

    async def forget_answers(self, agent_id: str, age: timedelta) -> None:
        """Forget the answers that are older than this. Raises StateUnavailable."""
        ...


class MemoryStateStore:
    """State that ends with the process: for tests and for workers without a database."""

    def __init__(self, memory: InMemoryMemoryStore | None = None) -> None:
        """Keep states, and what is said in their sessions in `memory`; without one that is not kept."""
        self._states = InMemoryMemoryStore() if memory is None else memory
        self._is_memory_kept = memory is not None
        self._answers: OrderedDict[tuple[str, str, UUID], dict[UUID, bytes]] = OrderedDict()

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision."""
        return self._states.load_document((agent_id, session_id, STATE_KEY))

    async def save(
        self,
        agent_id: str,
        session_id: str,
        document: bytes,
        revision: int,
        messages: NewMessages | None = None,
        wait: SavedWait | None = None,
    ) -> int:
        """Compare and set."""
        kept = messages if self._is_memory_kept else None
        with _translated(agent_id, session_id):
            saved = self._states.save_document((agent_id, session_id, STATE_KEY), document, revision, kept)
        if wait is not None:
            self._states.put_document((agent_id, session_id, _wait_key(wait.cause)), wait.record)
        return saved

    async def load_wait(self, agent_id: str, session_id: str, cause: UUID) -> bytes | None:
        """Return the records of a waiting handler."""
        found = self._states.load_document((agent_id, session_id, _wait_key(cause)))
        return None if found is None else found[0]

    async def save_answer(self, agent_id: str, session_id: str, answer: SavedAnswer) -> None:
        """Keep an answer; beyond MAX_ANSWERS packets the oldest are forgotten."""
        self._answers.setdefault((agent_id, session_id, answer.packet_id), {})[answer.answer_id] = answer.body
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    async def load_answers(self, agent_id: str, session_id: str, packet_id: UUID) -> list[bytes]:
        """Return the answers to a packet."""
        return list(self._answers.get((agent_id, session_id, packet_id), {}).values())

    async def forget_answers(self, agent_id: str, age: timedelta) -> None:
        """Forget nothing: their number is bounded."""


class PostgresStateStore:
    """State in the memory's table apc_app.agent_state_store, under the key `ctx.state`. The pool stays the caller's."""

    def __init__(self, pool: asyncpg.Pool, owner: str = DEFAULT_OWNER) -> None:
        self._pool = pool
        self._owner = owner

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision."""
        with _translated(agent_id, session_id):
            return await load_state(self._pool, self._owner, agent_id, session_id, STATE_KEY)

    async def save(
        self,
        agent_id: str,
        session_id: str,
        document: bytes,
        revision: int,
        messages: NewMessages | None = None,
        wait: SavedWait | None = None,
    ) -> int:
        """Compare and set in one transaction."""
        beside = None if wait is None else (_wait_key(wait.cause), wait.record)
        with _translated(agent_id, session_id):
            place = (agent_id, session_id, STATE_KEY)
            return await save_state(self._pool, self._owner, place, document, revision, messages, beside)

    async def load_wait(self, agent_id: str, session_id: str, cause: UUID) -> bytes | None:
        """Return the records of a waiting handler."""
        with _translated(agent_id, session_id):
            found = await load_state(self._pool, self._owner, agent_id, session_id, _wait_key(cause))
        return None if found is None else found[0]

    async def save_answer(self, agent_id: str, session_id: str, answer: SavedAnswer) -> None:
        """Keep an answer in a row beside the state: no revision changes."""
        body = orjson.dumps(answer.body.decode())
        with _translated(agent_id, session_id):
            async with owned(self._pool, self._owner) as connection:
                await insert_state(connection, self._owner, agent_id, session_id, answer.key, body)

    async def load_answers(self, agent_id: str, session_id: str, packet_id: UUID) -> list[bytes]:
        """Return the answers to a packet."""
        prefix = f"{ANSWER_PREFIX}{packet_id}/"
        with _translated(agent_id, session_id):
            async with owned(self._pool, self._owner) as connection:
                rows = await read_states_with(connection, self._owner, agent_id, session_id, prefix)
        return [str(orjson.loads(row["state_value"])).encode() for row in rows]

    async def forget_answers(self, agent_id: str, age: timedelta) -> None:
        """Delete the rows that are older."""
        with _translated(agent_id, "*"):
            async with owned(self._pool, self._owner) as connection:
                await forget_states_with(connection, self._owner, agent_id, ANSWER_PREFIX, age)


def _wait_key(cause: UUID) -> str:
    return f"{WAIT_PREFIX}{cause}"


@contextmanager
def _translated(agent_id: str, session_id: str) -> Iterator[None]:
    """Translate errors of the memory into errors of the state."""
    try:
        yield
    except StaleRevision as stale:
        raise StateStale(agent_id, session_id, stale.revision) from stale
    except MemoryUnavailable as error:
        raise StateUnavailable(str(error)) from error
    except (ConversationInvalid, ValueInvalid, OwnerForeign) as error:  # such as U+0000 in a text
        raise StateInvalid(f"ctx.state of session {session_id} cannot be stored: {error}") from error
