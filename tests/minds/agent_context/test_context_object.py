"""The object of the Agent Context Protocol 1.1: every field, unknown ones kept, ids mapped."""

from typing import Any
from uuid import UUID

import orjson
import pytest
from pydantic import ValidationError

from apc_contracts.agent import AgentContext, context_uuid

ID = "0190a5a0-0000-7000-8000-000000000001"
TIME = "2026-01-01T12:00:00Z"
DOCUMENT: dict[str, Any] = {
    "context_id": ID,
    "session_id": ID,
    "message_id": ID,
    "request_id": ID,
    "timestamp_utc": TIME,
    "source_entity": {"id": "u-1", "type": "user"},
    "target_agent_id": ID,
    "user_profile": {
        "user_id": ID,
        "archetypal_alignment": {
            "primary_archetype": "Sage",
            "secondary_archetype": "Hero",
            "alignment_strength": 0.5,
        },
        "resonance_fingerprint_summary": {"pump": 0.5},
    },
    "narrative_state": {
        "current_thread_id": "t",
        "current_realm": "Portal",
        "current_ritual_id": "r",
        "symbolic_focus": ["pump"],
        "mythic_overlay_active": "Shadow Path",
    },
    "interaction_history": {
        "recent_messages": [{"sender_id": "u-1", "content": "hi", "timestamp_utc": TIME, "metadata": {}}],
        "previous_exchange_summary": "s",
        "relevant_message_ids": [ID],
        "full_history_reference": "s-1",
    },
    "system_state": {"current_system_load": "low", "active_anomalies": ["a"]},
    "processing_directives": {
        "requested_action": "generate_response",
        "response_constraints": {"max_length": 100, "format": "markdown"},
        "priority": 3,
    },
    "custom_data": {"mine": 1},
}


def test_every_field_of_the_protocol_comes_back() -> None:
    context = AgentContext.from_document(DOCUMENT)
    assert context.to_document() == DOCUMENT
    assert not context.model_extra
    assert AgentContext.from_document(orjson.loads(orjson.dumps(context.to_document()))) == context


def test_three_fields_are_required_and_no_other() -> None:
    required = {name: DOCUMENT[name] for name in ("context_id", "session_id", "timestamp_utc")}
    assert AgentContext.from_document(required).to_document() == required
    for name in required:
        with pytest.raises(ValidationError, match=name):
            AgentContext.from_document({**required, name: "none"})


def test_unknown_fields_are_kept() -> None:
    document = {**DOCUMENT, "new": {"x": None}, "source_entity": {"id": "u", "badge": 7}}
    assert AgentContext.from_document(document).to_document() == document


def test_ids_of_ours_are_mapped_and_uuids_stay() -> None:
    assert context_uuid("session", ID) == UUID(ID)
    assert context_uuid("session", "s-1") == context_uuid("session", "s-1") != context_uuid("agent", "s-1")
    assert context_uuid("session", "s-1").version == 5
    assert context_uuid("session", ID.upper()) != UUID(ID), "two session ids are never one"
