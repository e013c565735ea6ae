"""Turns the first validation error into a refusal: a path into the sender's document and how to mend it."""

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from apc_contracts.errors import PacketRefused
from apc_contracts.vocabulary import PacketType, Signal

MAX_PATH_LENGTH = 200
MAX_MESSAGE_LENGTH = 400

# What the validator adds to a place in the document: the chosen member of a tagged union.
_TAGS_AFTER = {"objects": frozenset({"Claim", "Falsifier", "Decision", "Constraint", "Evidence"})}
_SESSION_TAGS = frozenset({str(Signal.START), str(Signal.SYNC)})
_PACKET_TAGS = frozenset(str(kind) for kind in PacketType)

_MENDING = {
    "missing": "required field is missing: add it",
    "extra_forbidden": "unknown field: remove it, or move it into metadata",
    "union_tag_not_found": "required field is missing: add it",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "mapping_type": "must be a JSON object",
    "tuple_type": "must be a JSON array",
}


def refusal_of(error: ValidationError) -> PacketRefused:
    """The refusal SCHEMA_INVALID for the first error; the message counts the others."""
    errors = error.errors(include_url=False, include_input=False)
    first = errors[0]
    message = _message(first)[:MAX_MESSAGE_LENGTH]
    if len(errors) > 1:
        message += f" (and {len(errors) - 1} more)"
    return PacketRefused("SCHEMA_INVALID", _path(first), message)


def _message(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if error["type"] == "string_pattern_mismatch":
        return f"does not match the pattern {context['pattern']}"
    if error["type"] == "union_tag_invalid":
        return f"unknown type: use one of {context['expected_tags']}"
    return _MENDING.get(error["type"], error["msg"])


def _path(error: ErrorDetails) -> str:
    context: dict[str, Any] = error.get("ctx", {})
    path = ""
    for part in _document_location(error["loc"]):
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    if error["type"].startswith("union_tag"):
        path += "." + str(context["discriminator"]).strip("'")
    if error["type"] == "rule_broken" and context["path"]:
        path += "." + context["path"]
    return path.removeprefix(".")[:MAX_PATH_LENGTH] or "$"


def _document_location(location: tuple[int | str, ...]) -> list[int | str]:
    """The location without what is no part of the document: union tags and the mark of a bad key."""
    parts = [part for part in location if part != "[key]"]
    if parts and parts[0] in _PACKET_TAGS:
        del parts[0]
    if parts[:2] == ["payload", "objects"] and len(parts) > 3 and parts[3] in _TAGS_AFTER["objects"]:
        del parts[3]
    if parts[:2] == ["payload", "session"] and len(parts) > 2 and parts[2] in _SESSION_TAGS:
        del parts[2]
    return parts
