"""Conversations with the agent of this server: what a frontend shows of them, never a prompt. Needs the extra `llm`."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from apc_agents.task_port import TaskStore
from apc_bus.concurrency import cancelled, unasked_cancel_fails
from apc_bus.telemetry import get_logger
from apc_contracts.errors import ApcError
from apc_contracts.identity.ids import new_packet_id
from apc_minds.context import ContextError, ContextPressureError, ContextStale, InvalidTransition
from apc_minds.llm import Dialogue, DialogueBusy, LLMAgent, LLMError, Props
from apc_minds.memory import BaseMemoryStore, MemoryArgumentInvalid, MemoryUnavailable
from apc_minds.text import ActionProgress, ResponseText
from apc_web.chat_models import (
    ChatAction,
    ChatAnswer,
    ChatHistory,
    ChatList,
    ChatProps,
    ChatState,
    ChatSummary,
    ChatTask,
    ChatTasks,
)
from apc_web.errors import ApiError

# The answer to one message, made by the server: leaving the page does not end it, coming back shows it.

_log = get_logger("apc_web")
MOST_ACTIONS = 200
"""Actions of one answer that are shown."""


@dataclass
class Answering:
    """A message on its way to an answer. `version` grows with every change but that of the text."""

    message: str
    state: str = "thinking"
    text: str = ""
    actions: dict[int, ChatAction] = field(default_factory=dict)
    error: str | None = None
    tokens: int | None = None
    cost: float | None = None
    version: int = 0
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def shown(self) -> ChatAnswer:
        """Return the answer as the API has it."""
        return ChatAnswer.of(self, actions=list(self.actions.values()))

    async def run(self, dialogue: Dialogue) -> None:
        """Ask the agent; what it raises ends in `error`."""
        try:
            with unasked_cancel_fails():
                output = await dialogue.say(self.message, on_progress=self._take)
            self.text, self.tokens = output.response, output.exchange.usage.total_tokens
            self.cost = None if output.exchange.usage.cost is None else output.exchange.cost
            self._end("done")
        except asyncio.CancelledError:
            self._end("stopped")
        except Exception as error:
            self.error = told_of(error)
            self._end("failed")
            if not isinstance(error, ApcError):
                _log.error("chat_answer_failed", error=f"{type(error).__name__}: {error}")

    def _take(self, progress: ResponseText | ActionProgress) -> None:
        if isinstance(progress, ActionProgress):
            if progress.number < MOST_ACTIONS:
                self.actions[progress.number] = ChatAction(name=progress.name, status=progress.status)
                self.version += 1
        else:
            if not progress.text.startswith(self.text):
                self.version += 1
            self.text = progress.text
        self._tell()

    def _end(self, state: str) -> None:
        self.state = state
        self.version += 1
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def told_of(error: Exception) -> str:
    """Return what a user is told of a failed answer; what failed behind the server is in its log."""
    match error:
        case DialogueBusy():
            return "The agent is still answering. Stop it, or wait for its answer."
        case MemoryUnavailable():
            return "The database of the conversations does not answer. Try again when it does."
        case LLMError() | ContextError():
            return f"{str(error)[:1].upper()}{str(error)[1:500]}. The conversation is as it was."
        case _:
            return "The server failed; its log has the reason. The conversation is as it was."


# The conversations of this server: one Dialogue and at most one running answer for each.

MemoryOf = Callable[[str], BaseMemoryStore]
MOST_CHATS = 256
"""Conversations that a server holds in memory; idle ones are read again from the database."""
MOST_ANSWERS = 8
"""Answers at the same time."""
MOST_LISTED = 100
_TITLE = 80
"""Characters of a title."""


class Chats:
    """Conversations with one agent.

    Args:
        agent: who answers.
        memory_of: returns the memory of a user.
        tasks: where ASYNC actions go.
        is_kept: whether the memory outlives the server.
    """

    def __init__(self, agent: LLMAgent, memory_of: MemoryOf, tasks: TaskStore | None, *, is_kept: bool) -> None:
        self._agent = agent
        self._memory_of = memory_of
        self._tasks = tasks
        self._is_kept = is_kept
        self.streams = 0
        self._dialogues: OrderedDict[tuple[str, str], Dialogue] = OrderedDict()
        self._answers: dict[tuple[str, str], Answering] = {}

    async def list(self, user: str) -> ChatList:
        """Return the conversations of a user with this agent."""
        with _refusals():
            rows = await self._memory_of(user).list_conversations_for_user(user, MOST_LISTED)
        items = [
            ChatSummary(
                session_id=row["session_id"],
                title=await self._title(user, row["session_id"]),
                messages=row["message_count"],
                updated_at=row["last_updated"],
            )
            for row in rows
        ]
        return ChatList(agent=self._agent.agent_id, is_kept=self._is_kept, items=items)

    async def begin(self, user: str) -> ChatState:
        """Begin a conversation."""
        session_id = str(new_packet_id())
        props = await self._dialogue(user, session_id).begin()
        return self._state(user, session_id, props)

    async def state(self, user: str, session_id: str) -> ChatState:
        """Return a conversation. Raises ApiError: there is none, or it is somebody else's."""
        return self._state(user, session_id, await (await self.known(user, session_id)).props())

    async def say(self, user: str, session_id: str, message: str) -> ChatState:
        """Begin to answer a message. Raises ApiError."""
        dialogue = await self.known(user, session_id)
        running = [one for one in self._answers.values() if one.state == "thinking"]
        answer = self._answers.get((user, session_id))
        if answer is not None and answer.state == "thinking":
            raise ApiError(409, "BUSY", "the agent is still answering: stop it, or wait for its answer")
        if len(running) >= MOST_ANSWERS:
            raise ApiError(429, "TOO_MANY", f"{MOST_ANSWERS} answers are being made: try again when one is done")
        answer = self._answers[(user, session_id)] = Answering(message)
        answer.task = asyncio.create_task(answer.run(dialogue))
        return self._state(user, session_id, await dialogue.props())

    async def stop(self, user: str, session_id: str) -> ChatState:
        """Stop the running answer, if any; the conversation is as it was."""
        await self.known(user, session_id)
        answer = self._answers.get((user, session_id))
        if answer is not None and answer.task is not None:
            await cancelled(answer.task)
        return await self.state(user, session_id)

    async def compress(self, user: str, session_id: str) -> ChatState:
        """Fold the oldest parts of a conversation now."""
        dialogue = await self.known(user, session_id)
        with _refusals():
            return self._state(user, session_id, await dialogue.compress())

    async def clear(self, user: str, session_id: str) -> ChatState:
        """Forget what was said."""
        dialogue = await self.known(user, session_id)
        with _refusals():
            state = self._state(user, session_id, await dialogue.clear())
        self._answers.pop((user, session_id), None)
        return state.model_copy(update={"answer": None})

    async def delete(self, user: str, session_id: str) -> None:
        """Delete a conversation; also what an agent keeps of it."""
        dialogue = await self.known(user, session_id)
        with _refusals():
            await dialogue.clear()
        await self._memory_of(user).delete_conversation(session_id)
        self._answers.pop((user, session_id), None)

    async def tasks(self, user: str, session_id: str) -> ChatTasks:
        """Return the tasks that the messages started."""
        own = await (await self.known(user, session_id)).own_tasks()
        events = [task.event() for task in own]
        return ChatTasks(
            items=[
                ChatTask(task_id=str(one["task_id"]), action=str(one["action"]), status=str(one["status"]))
                for one in events
            ]
        )

    async def history(self, user: str, session_id: str) -> ChatHistory:
        """Return every message that is kept, folded ones too."""
        whole = await (await self.known(user, session_id)).whole()
        messages = [] if whole is None else list(whole.messages)
        return ChatHistory(
            session_id=session_id,
            agent=self._agent.agent_id,
            messages=[
                {
                    "id": one.metadata.get("resource_id"),
                    "role": one.role,
                    "content": one.content,
                    "timestamp": one.timestamp.isoformat(),
                }
                for one in messages
                if one.role in ("user", "assistant")
            ],
            dropped=0 if whole is None else int(whole.metadata.get("dropped", 0)),
        )

    def answer_of(self, user: str, session_id: str) -> Answering | None:
        """Return the newest answer of a conversation since the server began."""
        return self._answers.get((user, session_id))

    async def known(self, user: str, session_id: str) -> Dialogue:
        """Return a conversation that somebody began. Raises ApiError: there is none, or it is somebody else's."""
        dialogue = self._dialogue(user, session_id)
        with _refusals():
            exists = await dialogue.exists()
        if not exists:
            self._dialogues.pop((user, session_id), None)
            raise ApiError(404, "NOT_FOUND", "there is no such conversation: `GET /chat/sessions` lists yours", "id")
        return dialogue

    async def close(self) -> None:
        """Stop every running answer."""
        for answer in list(self._answers.values()):
            if answer.task is not None:
                await cancelled(answer.task)

    def _dialogue(self, user: str, session_id: str) -> Dialogue:
        key = (user, session_id)
        dialogue = self._dialogues.setdefault(
            key, Dialogue(self._agent, session_id, self._memory_of(user), tasks=self._tasks)
        )
        self._dialogues.move_to_end(key)
        idle = [idle_key for idle_key in self._dialogues if idle_key != key and not self._is_busy(idle_key)]
        for idle_key in idle[: max(len(self._dialogues) - MOST_CHATS, 0)]:
            del self._dialogues[idle_key]
            self._answers.pop(idle_key, None)
        return dialogue

    def _is_busy(self, key: tuple[str, str]) -> bool:
        answer = self._answers.get(key)
        return answer is not None and answer.state == "thinking"

    async def _title(self, user: str, session_id: str) -> str | None:
        whole = await self._memory_of(user).retrieve_conversation(session_id)
        first = next((one.content for one in whole.own.messages if one.role == "user"), None) if whole else None
        return None if first is None else " ".join(first.split())[:_TITLE]

    def _state(self, user: str, session_id: str, props: Props) -> ChatState:
        answer = self._answers.get((user, session_id))
        return ChatState(
            session_id=session_id,
            revision=props.revision,
            props=ChatProps.model_validate(props.document),
            hidden=props.hidden,
            shortened=props.shortened,
            answer=None if answer is None else answer.shown(),
        )


@contextmanager
def _refusals() -> Iterator[None]:
    """Translate refusals of a conversation into answers of the API. Raises ApiError."""
    try:
        yield
    except DialogueBusy as error:
        raise ApiError(409, "BUSY", "the agent is still answering: stop it, or wait for its answer") from error
    except (InvalidTransition, ContextPressureError, ContextStale) as error:
        raise ApiError(409, "NOT_NOW", "the conversation cannot take this in its state: read it again") from error
    except MemoryUnavailable as error:
        raise ApiError(503, "AWAY", "the conversations' database does not answer: try again when it does") from error
    except MemoryArgumentInvalid as error:
        raise ApiError(422, "INVALID", str(error), error.place) from error
