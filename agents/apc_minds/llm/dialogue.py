"""A user's conversation with an LLM agent, across requests and processes.

Source: docs/reference/conformance/context-engineering.md, section 5.1 (SoulSession.dialogue);
docs/specification/agents.md section 6.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Self
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic_ai.usage import RunUsage

from apc_agents.errors import AgentError, StaleRevision, UnknownSession
from apc_agents.ports import BaseMemoryStore, ConversationContext, NewMessages
from apc_agents.task_port import Task, TaskStore
from apc_minds.action_context import REMEMBERED, ActionContext, StateMemory
from apc_minds.context.compression import OnCompression
from apc_minds.context.session import ContextSession
from apc_minds.context.store import MemoryContextStore, StateContextStore
from apc_minds.context.stream_paths import StreamResolver
from apc_minds.context.turns import ContextStale, Turn
from apc_minds.context.window import Folding
from apc_minds.language_model import AnswerInvalid
from apc_minds.llm.agent import LLMAgent
from apc_minds.llm.mind import TASKS_READ, MessageExchange
from apc_minds.llm.prompting import messages_of_turns
from apc_minds.text import OnProgress

DIALOGUE: Final = "dialogue"
"""The key in the memory, with owner_id = session_id."""


class DialogueState:
    """One JSON document, kept as a whole: the conversation, and what the agent remembers of it."""

    def __init__(self, memory: BaseMemoryStore, agent_id: str, session_id: str, kept: tuple[Any, int] | None) -> None:
        self.state: dict[str, Any]
        self.state, self._revision = kept or ({}, 0)
        self._memory = memory
        self._place = (agent_id, session_id, DIALOGUE)

    @classmethod
    async def load(cls, memory: BaseMemoryStore, agent_id: str, session_id: str) -> Self:
        """Return the state as last stored; empty if there is none."""
        return cls(memory, agent_id, session_id, await memory.load_agent_state(agent_id, session_id, DIALOGUE))

    async def keep(self, messages: NewMessages | None = None) -> None:
        """Compare and set, with what was said meanwhile.

        Raises:
            ContextStale: somebody else has kept it since. OwnerForeign: it is not the user's.
        """
        try:
            self._revision = await self._memory.save_agent_state(*self._place, self.state, self._revision, messages)
        except StaleRevision as stale:
            raise ContextStale(self._place[1], stale.revision) from stale


class DialogueBusy(AgentError):
    """The agent is still answering in the session `session_id`."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} is still answering: wait for its answer")


@dataclass(frozen=True, slots=True)
class Props:
    """What a frontend is shown (`document`, JSON), and the `revision` of the session that it shows.

    `hidden` turns are not told to the agent (paged out or dropped), `shortened` ones in fewer words than were said.
    """

    revision: int
    document: dict[str, Any]
    hidden: int = 0
    shortened: int = 0


@dataclass(frozen=True, slots=True)
class DialogueOutput:
    """What came of a message: the `response`, the `props` afterwards, and the whole `exchange`."""

    response: str
    props: Props
    exchange: MessageExchange


@dataclass(frozen=True, slots=True)
class _Opened:
    """The conversation as it is changed: `session` writes into the state of `kept`, and that is kept as a whole."""

    kept: DialogueState
    store: StateContextStore
    session: ContextSession


class Dialogue:
    """One conversation. Each request reads what is stored, changes it as a whole, and stores it, or changes nothing.

    Several processes may serve one conversation; the one that loses a race is told by ContextStale. A caller that
    waits in `changes` is told of what this process does.

    ```python
    from pydantic_ai.models.test import TestModel

    from apc_minds.llm import Dialogue, DialogueBusy, DialogueOutput, LLMAgent, LLMError, MessageExchange, Mind, Props
    from apc_minds.memory import InMemoryMemoryStore

    model = TestModel(custom_output_args={"status": "SUCCESS", "stop": True, "response": "At seven."})
    agent = LLMAgent("clerk", role="clerk", swarm="shop", model=model)
    dialogue = Dialogue(agent, "chat-1", InMemoryMemoryStore())
    try:
        output: DialogueOutput = await dialogue.say("When do you open?")
    except (DialogueBusy, LLMError) as error:
        raise SystemExit(f"no answer, and nothing has changed: {error}") from error
    exchange: MessageExchange = output.exchange
    assert (output.response, exchange.steps) == ("At seven.", 1)
    props: Props = await dialogue.clear(revision=output.props.revision)
    assert props.revision > output.props.revision and isinstance(agent.mind, Mind)
    ```
    """

    def __init__(
        self,
        agent: LLMAgent,
        session_id: str,
        memory: BaseMemoryStore,
        *,
        tasks: TaskStore | None = None,
        on_compression: OnCompression | None = None,
    ) -> None:
        """Open a conversation, begun or not.

        Args:
            agent: who answers.
            session_id: names it.
            memory: that of the user: `memory.for_owner(user)` keeps users apart.
            tasks: where ASYNC actions go, to be run by a process that has the store; without it they are refused.
            on_compression: told of every compression before it takes effect; what it raises undoes it.
        """
        self.agent = agent
        self.session_id = session_id
        self.tasks = tasks
        self._options = {} if on_compression is None else {"on_compression": on_compression}
        self._memory = memory
        self._archive = MemoryContextStore(memory, agent.agent_id)
        self._lock = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._changes = 0
        self._thinking: Props | None = None

    async def begin(self) -> Props:
        """Store an empty conversation unless there is one."""
        async with self._changing(None) as opened:
            if not opened.session.revision:
                await self._save(opened)
            return _props(opened.session)

    async def exists(self) -> bool:
        """Return whether somebody began it."""
        return bool((await DialogueState.load(self._memory, self.agent.agent_id, self.session_id)).state)

    async def props(self) -> Props:
        """Return what a frontend is shown now; while the agent thinks, with what has come so far.

        Raises:
            UnknownSession: nobody began it.
        """
        if self._thinking is not None:
            return self._thinking
        session = (await self._open(RunUsage())).session
        if not session.revision:
            raise UnknownSession(self.session_id)
        return _props(session)

    async def whole(self) -> ConversationContext | None:
        """Return every message that is kept of the conversation, folded ones too; None before the first.

        What another login of the database has added is no part of it.
        """
        kept = await self._memory.retrieve_conversation(self.session_id)
        return None if kept is None else kept.own

    async def own_tasks(self) -> Sequence[Task]:
        """Return the newest tasks that this user's messages started, newest first; at most TASKS_READ are looked at."""
        if self.tasks is None:
            return ()
        agent_id, session_id = self.agent.agent_id, self.session_id
        listed = await self.tasks.list(agent_id=agent_id, session_id=session_id, limit=TASKS_READ)
        # Another user's conversation may have the same session_id.
        return [task for task in listed if task.spec.compartment == self._memory.owner]

    async def say(
        self, message: str, *, revision: int | None = None, on_progress: OnProgress | None = None
    ) -> DialogueOutput:
        """Return the agent's answer.

        Args:
            message: what the user says.
            revision: that of the props that the user saw; None = whatever it is.
            on_progress: told of the response and the actions as they come; prose is an answer then.

        Raises:
            ContextStale: the session has another revision. DialogueBusy: it is still answering.
            ContextError: the message cannot be taken. LLMError: there is no answer. Nothing has changed then.
        """
        usage = RunUsage()
        # A message without an answer leaves the revision: said again, it finds the answers that were paid for and the
        # tasks that it started; another message does not.
        origin = sha256(message.encode(errors="surrogatepass")).hexdigest()
        async with self._changing(revision, usage, origin) as opened:
            kept, session = opened.kept, opened.session
            recording = self.agent.recording(self.session_id, opened.store, origin)
            try:
                exchange = await self.agent.mind.answer(
                    session,
                    message,
                    actions=ActionContext(
                        agent_id=self.agent.agent_id,
                        session_id=self.session_id,
                        security_level=self.agent.security_level,
                        memory=StateMemory(kept),
                        tasks=self.tasks,
                        compartment=self._memory.owner,
                        new_origin=self._origins(f"message/{session.revision}/{origin}"),
                    ),
                    recording=recording,
                    usage=usage,
                    remembered=kept.state.get(REMEMBERED),
                    on_change=self._show_thinking,
                    on_progress=on_progress,
                )
            except AnswerInvalid:
                await recording.forget()  # else the same message would never be answered
                raise
            await recording.forget_older(self.agent.settings.records)
            await self._save(opened, exchange.turns)
            return DialogueOutput(exchange.response, _props(session), exchange)

    async def compress(self, target_pressure: float | None = None, *, revision: int | None = None) -> Props:
        """Compress now. Raises InvalidTransition, ArgumentInvalid, ContextStale, DialogueBusy.

        Args:
            target_pressure: how full the window may be afterwards, 0..1; default the agent's.
            revision: that of the props that the user saw; None = whatever it is.
        """
        async with self._changing(revision) as opened:
            await opened.session.compress(target_pressure)
            await self._save(opened)
            return _props(opened.session)

    async def clear(self, *, revision: int | None = None) -> Props:
        """End the conversation and forget what was kept of it. Raises InvalidTransition, ContextStale, DialogueBusy.

        Args:
            revision: as `compress`.
        """
        async with self._changing(revision) as opened:
            await opened.session.clear()
            opened.kept.state.pop(REMEMBERED, None)
            await self._save(opened, is_restart=True)
            return _props(opened.session)

    async def resolve(self, path: str, /, **arguments: Any) -> dict[str, Any]:
        """Return the operation of a `self.stream.*` path. Its answer is for operators, not for a frontend.

        Raises:
            UnknownPath, ArgumentInvalid, ContextError: as StreamResolver; nothing has changed then.
        """
        async with self._changing(None) as opened:
            answer = await StreamResolver(opened.session).resolve(path, **arguments)
            await self._save(opened)
            return answer

    async def changes(self) -> AsyncIterator[Props]:
        """Yield what a frontend is shown, now and at each change; who is slow sees the newest.

        Raises UnknownSession.
        """
        while True:
            seen = self._changes
            yield await self.props()
            async with self._changed:
                while self._changes == seen:
                    await self._changed.wait()

    @asynccontextmanager
    async def _changing(
        self, revision: int | None, usage: RunUsage | None = None, origin: str = ""
    ) -> AsyncIterator[_Opened]:
        if self._lock.locked():
            raise DialogueBusy(self.session_id)
        try:
            async with self._lock:
                opened = await self._open(usage or RunUsage(), origin)
                if revision is not None and revision != opened.session.revision:
                    raise ContextStale(self.session_id, revision)
                yield opened
        finally:
            # After the lock: the callers that are told may send at once.
            self._thinking = None
            await self._tell()

    async def _open(self, usage: RunUsage, origin: str = "") -> _Opened:
        kept = await DialogueState.load(self._memory, self.agent.agent_id, self.session_id)
        store = StateContextStore(kept, self._archive)
        session = await self.agent.open_session(self.session_id, store, usage=usage, origin=origin, **self._options)
        return _Opened(kept, store, session)

    async def _save(self, opened: _Opened, turns: Sequence[Turn] = (), *, is_restart: bool = False) -> None:
        # Each time: the conversation is the user's, listed by its newest change, exported and erased with the user.
        agent_id, user_id = self.agent.agent_id, self._memory.owner
        messages = messages_of_turns(turns, f"{agent_id}/{self.session_id}", agent_id, user_id)
        await opened.session.save()
        await opened.kept.keep(NewMessages(self.session_id, user_id, agent_id, tuple(messages), is_restart=is_restart))

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
    window = session.window
    summarized = sum(fold.how is Folding.SUMMARIZED for fold in window.folded.values())
    shortened = summarized + len(window.gists)
    return Props(session.revision, session.render(), len(window.folded) - shortened, shortened)
