"""The context object that an agent is invoked with.

Source: docs/reference/conformance/agent-context.md section 2; docs/specification/agents.md section 2.

All fields are optional there; unknown fields are kept, because the protocol asks agents to be resilient to them.
"""

from collections.abc import Mapping
from typing import Any, Final, Self
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import BaseModel, ConfigDict, JsonValue

from apc_contracts.contract_model import Fraction, OpenMap, Time, Uuid

CONTEXT_VERSION: Final = "1.1"


def context_uuid(kind: str, original: str) -> UUID:
    """Return the UUID for one of our ids: the id itself if it is a UUID, else its UUIDv5, identical everywhere."""
    try:
        parsed = UUID(original)
    except ValueError:
        return uuid5(NAMESPACE_URL, f"apc:{kind}/{original}")
    return parsed if str(parsed) == original else uuid5(NAMESPACE_URL, f"apc:{kind}/{original}")


class _Open(BaseModel):
    """A frozen value that keeps the fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class SourceEntity(_Open):
    """Who made or forwarded the context; `type` is user, agent, system_module or another word."""

    id: str | None = None
    type: str | None = None


class ArchetypalAlignment(_Open):
    """The user's archetypes."""

    primary_archetype: str | None = None
    secondary_archetype: str | None = None
    alignment_strength: Fraction | None = None


class UserProfile(_Open):
    """The user of the interaction."""

    user_id: Uuid | None = None
    archetypal_alignment: ArchetypalAlignment | None = None
    resonance_fingerprint_summary: OpenMap | None = None


class NarrativeState(_Open):
    """The state of the conversation."""

    current_thread_id: str | None = None
    current_realm: str | None = None
    current_ritual_id: str | None = None
    symbolic_focus: tuple[str, ...] | None = None
    mythic_overlay_active: str | None = None


class ContextMessage(_Open):
    """One message of the history, or the current one."""

    sender_id: str | None = None
    content: str | None = None
    timestamp_utc: Time | None = None
    metadata: Mapping[str, JsonValue] | None = None


class InteractionHistory(_Open):
    """Earlier messages; `full_history_reference` is the session_id of the conversation in the memory store."""

    recent_messages: tuple[ContextMessage, ...] | None = None
    previous_exchange_summary: str | None = None
    relevant_message_ids: tuple[Uuid, ...] | None = None
    full_history_reference: str | None = None


class SystemState(_Open):
    """The load of the system: `current_system_load` is low, medium or high."""

    current_system_load: str | None = None
    active_anomalies: tuple[str, ...] | None = None


class ResponseConstraints(_Open):
    """Requirements on an answer: a length in characters, and text, json or markdown."""

    max_length: int | None = None
    format: str | None = None


class ProcessingDirectives(_Open):
    """What the receiving agent is asked to do."""

    requested_action: str | None = None
    response_constraints: ResponseConstraints | None = None
    priority: int | None = None


class AgentContext(_Open):
    """A snapshot of the situation in which one agent is invoked."""

    context_id: Uuid
    session_id: Uuid
    message_id: Uuid | None = None
    request_id: Uuid | None = None
    timestamp_utc: Time
    source_entity: SourceEntity | None = None
    target_agent_id: Uuid | None = None
    user_profile: UserProfile | None = None
    narrative_state: NarrativeState | None = None
    interaction_history: InteractionHistory | None = None
    system_state: SystemState | None = None
    processing_directives: ProcessingDirectives | None = None
    custom_data: OpenMap | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the context as JSON; fields that were not given are left out."""
        document: dict[str, Any] = self.model_dump(mode="json", exclude_unset=True)
        return document

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Return the context in a JSON document. Raises pydantic.ValidationError, which names the field."""
        return cls.model_validate(document)
