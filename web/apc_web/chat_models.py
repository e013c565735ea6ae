"""Conversations: what a frontend shows of them, never a prompt."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from apc_web.models import ApiModel

MOST_CHARACTERS = 100_000


class ChatSummary(ApiModel):
    """A conversation in the list."""

    session_id: str
    title: str | None
    """The beginning of the first message."""
    messages: int
    updated_at: datetime


class ChatList(ApiModel):
    """The caller's conversations, the one that changed last first, at most 100."""

    agent: str
    """The agent that answers."""
    is_kept: bool
    """False when the conversations end with the server: it has no database for them."""
    items: list[ChatSummary]


class ChatMessage(ApiModel):
    """A message that is in the agent's window, or the placeholder of those that were folded."""

    id: str
    role: str
    content: str
    timestamp: datetime
    isPreserved: bool


class ChatProps(ApiModel):
    """What a frontend shows, as in docs/reference/conformance/context-engineering.md section 7.3."""

    messages: list[ChatMessage]
    pressure: float
    """How full the agent's window is, 0 to 1."""
    status: str
    """ready, thinking or compressed."""
    canSend: bool
    canCompress: bool
    canClear: bool


class ChatAction(ApiModel):
    """An action of the agent: its name and status, no parameters and no result."""

    name: str
    status: str
    """RUNNING, SUCCESS, ERROR, TASK_STARTED, CANCELLED or REFUSED."""


class ChatAnswer(ApiModel):
    """The answer to the newest message of this server's life."""

    state: str
    """thinking, done, stopped or failed."""
    message: str
    """What the user said. Unless the answer is done, the conversation does not hold it: send it again."""
    text: str
    """The response so far."""
    actions: list[ChatAction]
    error: str | None = None
    """Why it failed, and what to do."""
    tokens: int | None = None
    cost: float | None = None


class ChatText(ApiModel):
    """What is added to the response."""

    delta: str


class ChatState(ApiModel):
    """A conversation and what is being answered in it."""

    session_id: str
    revision: int
    props: ChatProps
    hidden: int
    """Earlier turns that the agent is not told of: paged out or dropped. The history has those that were said."""
    shortened: int
    """Earlier turns that it is told of in fewer words."""
    answer: ChatAnswer | None


class ChatTask(ApiModel):
    """A task that a message started."""

    task_id: str
    action: str
    status: str


class ChatTasks(ApiModel):
    """Tasks of a conversation, the newest first."""

    items: list[ChatTask]


class ChatHistory(ApiModel):
    """Every message that is kept of a conversation, folded ones too: the export."""

    session_id: str
    agent: str
    messages: list[dict[str, Any]]
    """role, content, timestamp, and the id that the message has in the window."""
    dropped: int
    """Oldest messages that are no longer kept."""


class NewChatMessage(BaseModel):
    """A message to the agent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    content: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]
