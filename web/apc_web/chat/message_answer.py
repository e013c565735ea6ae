"""The answer to one message, made by the server: leaving the page does not end it, coming back shows it."""

import asyncio
from dataclasses import dataclass, field

import structlog

from apc_agents.context import ContextError
from apc_agents.llm import Dialogue, DialogueBusy, LLMError
from apc_agents.memory import MemoryUnavailable
from apc_agents.text.partial_answer import ActionProgress, ResponseText
from apc_bus.concurrency import unasked_cancel_fails
from apc_contracts.errors import ApcError
from apc_web.models.chat import ChatAction, ChatAnswer

_log = structlog.get_logger("apc_web")
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
        return ChatAnswer(
            state=self.state,
            message=self.message,
            text=self.text,
            actions=list(self.actions.values()),
            error=self.error,
            tokens=self.tokens,
            cost=self.cost,
        )

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
            self.error = words_of(error)
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


def words_of(error: Exception) -> str:
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
