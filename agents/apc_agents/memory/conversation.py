"""A conversation as it is kept. Source: docs/reference/conformance/memory.md section 4.1,
docs/reference/conformance/agent-context.md section 6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from pydantic import Field, ValidationError

from apc_agents.json_values import checked_text
from apc_agents.memory.errors import ConversationInvalid, ValueInvalid
from apc_agents.memory.storable_values import checked_id, encoded
from apc_bus.settings import SituationSettings
from apc_contracts.contract_model import Model, Time

CONVERSATION_VERSION: Final = "1.0"
"""Of the schema below; column `version` of the Agent Memory Protocol."""
MAX_MESSAGE_BYTES: Final = 256 * 1024
"""Of one message's text, in UTF-8: as much as a packet holds."""
MAX_SUMMARY_LENGTH: Final = 500
"""Characters of a summary in a listing."""


class ConversationMessage(Model):
    """One message. `metadata` is any JSON; `sender_id` in it says who spoke, beyond the role."""

    role: str
    content: str
    timestamp: Time
    metadata: Mapping[str, Any] = {}


class ConversationContext(Model):
    """The messages of one session, a value: what changes it gives a new one.

    `revision` is None for an upsert; a number for compare-and-set: what the store holds must have it (0 = nothing is
    there yet), and has the next number afterwards. It is no part of the stored document.
    """

    session_id: str = Field(min_length=1)
    messages: tuple[ConversationMessage, ...] = ()
    metadata: Mapping[str, Any] = {}
    agent_participants: tuple[str, ...] = ()
    version: Literal["1.0"] = CONVERSATION_VERSION
    revision: int | None = Field(default=None, ge=0, exclude=True)

    def with_message(self, message: ConversationMessage, participant: str | None = None) -> Self:
        """Return the conversation with one more message, and with this agent among the participants."""
        grown = self.model_copy(update={"messages": (*self.messages, message)})
        return grown if participant is None else grown.with_participant(participant)

    def with_participant(self, participant: str) -> Self:
        """Return the conversation with this agent among the participants."""
        if participant in self.agent_participants:
            return self
        return self.model_copy(update={"agent_participants": (*self.agent_participants, participant)})

    def shortened(self, kept_messages: int, kept_bytes: int) -> Self:
        """Return it without the oldest messages that are too many; `metadata.dropped` counts them."""
        messages, size = list[ConversationMessage](), 0
        for message in reversed(self.messages[-kept_messages:]):
            size += len(message.content.encode())
            if messages and size > kept_bytes:
                break
            messages.append(message)
        gone = len(self.messages) - len(messages)
        if not gone:
            return self
        dropped = int(self.metadata.get("dropped", 0)) + gone
        return self.model_copy(
            update={"messages": tuple(messages[::-1]), "metadata": {**self.metadata, "dropped": dropped}}
        )

    @property
    def summary(self) -> str | None:
        """`metadata.summary`, if it is text: what a listing shows."""
        summary = self.metadata.get("summary")
        return summary[:MAX_SUMMARY_LENGTH] if isinstance(summary, str) else None

    def to_document(self) -> dict[str, Any]:
        """Return JSON: session_id, messages, metadata, agent_participants, version."""
        messages = [
            {
                "role": message.role,
                "content": message.content,
                "timestamp": message.timestamp.isoformat(),
                "metadata": dict(message.metadata),
            }
            for message in self.messages
        ]
        return {
            "session_id": self.session_id,
            "messages": messages,
            "metadata": dict(self.metadata),
            "agent_participants": list(self.agent_participants),
            "version": self.version,
        }

    def to_bytes(self) -> bytes:
        """Return the document as JSON. Raises ValueInvalid, and ConversationInvalid for a message that is too long."""
        for number, message in enumerate(self.messages):
            place = f"messages[{number}]"
            checked_text(message.content, f"{place}.content", ValueInvalid)
            if (size := len(message.content.encode())) > MAX_MESSAGE_BYTES:
                raise ConversationInvalid(
                    f"{place}.content", f"it has {size} bytes and {MAX_MESSAGE_BYTES} fit: shorten it, or send parts"
                )
        try:
            return encoded(self.to_document(), "")
        except ValueInvalid as error:
            raise ValueInvalid(error.path.lstrip(".") or "$", str(error).partition(": ")[2]) from None

    @classmethod
    def from_document(cls, document: Any, revision: int | None = None) -> Self:
        """Return a conversation from its document. Raises ConversationInvalid with the path of what does not fit."""
        try:
            return cls.model_validate(document).model_copy(update={"revision": revision})
        except ValidationError as invalid:
            first = invalid.errors(include_url=False)[0]
            path = ".".join(str(part) for part in first["loc"]) or "$"
            raise ConversationInvalid(path, f"{first['msg']}, and this is schema {CONVERSATION_VERSION}") from None


def merged(parts: Sequence[ConversationContext]) -> ConversationContext:
    """Return the parts of one conversation as a whole: each message once, in the order of their times.

    A part is what one agent heard and said. The revision of the whole is the sum of theirs.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    known: dict[Any, ConversationMessage] = {}
    for message in (message for part in parts for message in part.messages):
        known.setdefault(message.metadata.get("message_id", id(message)), message)
    metadata: dict[str, Any] = {}
    for part in parts:
        metadata |= part.metadata
    dropped = sum(int(part.metadata.get("dropped", 0)) for part in parts)
    return first.model_copy(
        update={
            "messages": tuple(sorted(known.values(), key=lambda message: message.timestamp)),
            "metadata": {**metadata, "dropped": dropped} if dropped else metadata,
            "agent_participants": tuple(dict.fromkeys(name for part in parts for name in part.agent_participants)),
            "revision": sum(part.revision or 0 for part in parts),
        }
    )


@dataclass(frozen=True, slots=True)
class NewMessages:
    """What was said in a session since its state was saved last.

    `user_id` is whose conversation it is if nobody began it yet; `is_restart` forgets what was said before.
    """

    session_id: str
    user_id: str
    participant: str
    messages: tuple[ConversationMessage, ...] = ()
    is_restart: bool = False

    def added_to(self, kept: ConversationContext | None) -> ConversationContext:
        """Return the conversation with these messages, each once, within the bounds of the settings."""
        checked_id("session_id", self.session_id)
        checked_id("user_id", self.user_id)
        if kept is None:
            kept = ConversationContext(session_id=self.session_id, metadata={"user_id": self.user_id})
        if self.is_restart:
            kept = kept.model_copy(update={"messages": ()})
        known = {message.metadata.get("message_id") for message in kept.messages}
        fresh = (one for one in self.messages if one.metadata.get("message_id") not in known)
        grown = kept.with_participant(self.participant)
        for message in fresh:
            grown = grown.with_message(message)
        settings = SituationSettings()
        return grown.shortened(settings.kept_messages, settings.kept_bytes)
