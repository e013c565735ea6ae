"""A user's conversation with an LLM agent, across requests and processes.

Source: context-engineering-protocol, section 5.1 (SoulSession.dialogue); agents.md section 6.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic_ai.usage import RunUsage

from apc_agents.actions import ActionContext
from apc_agents.actions.tasks import TaskStore
from apc_agents.context import ContextSession, ContextStale, MemoryContextStore, StreamResolver
from apc_agents.errors import AgentError
from apc_agents.llm.agent import LLMAgent
from apc_agents.llm.mind import Exchange
from apc_agents.llm.recording import Recording
from apc_agents.llm.remembering import REMEMBERED_PREFIX, DraftMemory
from apc_agents.memory import BaseMemoryStore, ConversationContext, UnknownSession


class DialogueBusy(AgentError):
    """The agent is still answering."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} is still answering: wait for its answer")


@dataclass(frozen=True, slots=True)
class Props:
    """What a frontend is shown, and the revision of the session that it shows."""

    revision: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DialogueOutput:
    """What came of a message."""

    response: str
    props: Props
    exchange: Exchange


class Dialogue:
    """One conversation. Each request reads what is stored, changes it as a whole, and stores it, or changes nothing.

    So several processes may serve one conversation; the one that loses a race is told by ContextStale. Whoever waits in
    `changes` is told of what this process does.
    """

    def __init__(
        self, agent: LLMAgent, session_id: str, memory: BaseMemoryStore, *, tasks: TaskStore | None = None
    ) -> None:
        """A conversation, begun or not.

        Args:
            agent: who answers.
            session_id: names it.
            memory: that of the user: `memory.for_owner(user)` keeps users apart.
            tasks: where ASYNC actions go, and whoever has it runs them; without it they are refused.
        """
        self.agent = agent
        self.session_id = session_id
        self.tasks = tasks
        self._memory = memory
        self._store = MemoryContextStore(memory, agent.agent_id)
        self._lock = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._changes = 0
        self._thinking: Props | None = None

    async def begin(self) -> Props:
        """Store an empty conversation unless there is one."""
        async with self._changing(None) as session:
            if not session.revision:
                await self._save(session)
            return _props(session)

    async def exists(self) -> bool:
        """Whether somebody began it."""
        return await self._store.load(self.session_id) is not None

    async def props(self) -> Props:
        """What a frontend is shown now; while the agent thinks, with what has come so far.

        Raises:
            UnknownSession: nobody began it.
        """
        if self._thinking is not None:
            return self._thinking
        session = await self._opened(RunUsage())
        if not session.revision:
            raise UnknownSession(self.session_id)
        return _props(session)

    async def say(self, message: str, *, revision: int | None = None) -> DialogueOutput:
        """The agent's answer.

        Args:
            message: what the user says.
            revision: that of the props that the user saw; None = whatever it is.

        Raises:
            ContextStale: the session has another revision. DialogueBusy: it is still answering.
            ContextError: the message cannot be taken. LLMError: there is no answer. Nothing has changed then.
        """
        usage = RunUsage()
        async with self._changing(revision, usage) as session:
            mind, agent_id = self.agent.mind, self.agent.agent_id
            kept = await DraftMemory.load(self._memory, agent_id, self.session_id)
            # A message without an answer leaves the revision: said again, it finds the answers that were paid for and
            # the tasks that it started; another message does not.
            origin = f"message/{session.revision}/{sha256(message.encode(errors='surrogatepass')).hexdigest()}"
            exchange = await mind.answer(
                session,
                message,
                actions=ActionContext(
                    agent_id=agent_id,
                    session_id=self.session_id,
                    security_level=self.agent.security_level,
                    memory=kept,
                    tasks=self.tasks,
                    new_origin=self._origins(origin),
                ),
                recording=Recording(self._store, self.session_id, origin),
                usage=usage,
                remembered=kept.values,
                on_change=self._show_thinking,
            )
            # In this order: until the conversation is stored, the same message makes the same prompt.
            await self._save(session)
            await kept.keep()
            return DialogueOutput(exchange.response, _props(session), exchange)

    async def compress(self, target_pressure: float | None = None, *, revision: int | None = None) -> Props:
        """Compress now. Raises InvalidTransition, ArgumentInvalid, ContextStale, DialogueBusy."""
        return await self._change(revision, lambda session: session.compress(target_pressure))

    async def clear(self, *, revision: int | None = None) -> Props:
        """End the conversation and forget what was kept of it. Raises InvalidTransition, ContextStale, DialogueBusy."""
        props = await self._change(revision, lambda session: session.clear())
        await self._memory.delete_agent_states(self.agent.agent_id, self.session_id, REMEMBERED_PREFIX)
        return props

    async def resolve(self, path: str, /, **arguments: Any) -> dict[str, Any]:
        """The operation of a `self.stream.*` path. Its answer is for operators, not for a frontend.

        Raises:
            UnknownPath, ArgumentInvalid, ContextError: as StreamResolver; nothing has changed then.
        """
        async with self._changing(None) as session:
            answer = await StreamResolver(session).resolve(path, **arguments)
            await self._save(session)
            return answer

    async def changes(self) -> AsyncIterator[Props]:
        """What a frontend is shown, now and at each change; who is slow sees the newest. Raises UnknownSession."""
        while True:
            seen = self._changes
            yield await self.props()
            async with self._changed:
                while self._changes == seen:
                    await self._changed.wait()

    async def _change(self, revision: int | None, change: Callable[[ContextSession], Awaitable[object]]) -> Props:
        async with self._changing(revision) as session:
            await change(session)
            await self._save(session)
            return _props(session)

    @asynccontextmanager
    async def _changing(self, revision: int | None, usage: RunUsage | None = None) -> AsyncIterator[ContextSession]:
        if self._lock.locked():
            raise DialogueBusy(self.session_id)
        try:
            async with self._lock:
                session = await self._opened(usage or RunUsage())
                if revision is not None and revision != session.revision:
                    raise ContextStale(self.session_id, revision)
                yield session
        finally:
            # After the lock: whoever is told may send at once.
            self._thinking = None
            await self._tell()

    async def _opened(self, usage: RunUsage) -> ContextSession:
        return await self.agent.open_session(self.session_id, self._store, usage=usage)

    async def _save(self, session: ContextSession) -> None:
        is_new = not session.revision
        await session.save()
        if is_new and await self._memory.retrieve_conversation(self.session_id) is None:
            # What is kept of the session is the user's from now on: listed, exported and erased with the user.
            begun = ConversationContext(session_id=self.session_id, agent_participants=(self.agent.agent_id,))
            await self._memory.store_conversation(self.session_id, self._memory.owner, begun)

    def _origins(self, origin: str) -> Callable[[], UUID]:
        count = itertools.count(1)
        place = f"{self._memory.owner}/{self.agent.agent_id}/{self.session_id}/{origin}"
        return lambda: uuid5(NAMESPACE_URL, f"apc:chat/{place}/{next(count)}")

    async def _show_thinking(self, session: ContextSession) -> None:
        self._thinking = _props(session)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changes += 1
            self._changed.notify_all()


def _props(session: ContextSession) -> Props:
    return Props(session.revision, session.render())
