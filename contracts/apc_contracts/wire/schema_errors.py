"""Turn the first validation error into a refusal: a path into the sender's document and the remedy."""

import re
from collections.abc import Set
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from apc_contracts.contract_model import (
    ARTIFACT_HASH_PATTERN,
    ID_PATTERN,
    PUBLIC_KEY_PATTERN,
    SCHEMA_PATTERN,
    SHA256_PATTERN,
    TIME_PATTERN,
    UUID_PATTERN,
)
from apc_contracts.errors import PacketRefused
from apc_contracts.vocabulary import Signal

# A refusal travels in a NACK: a hostile key must not make it too large.
MAX_PATH_LENGTH = 200
MAX_MESSAGE_LENGTH = 400

# Parts of a location that are not in the document: the chosen member of a union.
_OBJECT_TAGS = frozenset({"Claim", "Falsifier", "Decision", "Constraint", "Evidence"})
_EVAL_TAGS = frozenset({"EVAL", "OPEN_EVAL"})
_SESSION_TAGS = frozenset({Signal.START, Signal.SYNC, "TASK"})

# The validator shows an enum's member as Python does: <PacketType.IDEA: 'IDEA'>.
_ENUM_MEMBER = re.compile(r"<[^<>]*: ('[^']*')>")

UNKNOWN_FIELD = "unknown field: remove it"
_MISSING = "required field is missing: add it"
_NO_OBJECT = "must be a JSON object"
_MENDING = {
    "missing": _MISSING,
    "union_tag_not_found": _MISSING,
    "extra_forbidden": UNKNOWN_FIELD,
    "model_type": _NO_OBJECT,
    "model_attributes_type": _NO_OBJECT,
    "mapping_type": _NO_OBJECT,
    "dict_type": _NO_OBJECT,
    "tuple_type": "must be a JSON array",
    "list_type": "must be a JSON array",
    "bool_type": "must be true or false",
    "int_type": "must be an integer, written without fraction or exponent",
    "int_from_float": "must be an integer, written without fraction or exponent",
    "float_type": "must be a number",
    "string_type": "must be a string",
}
_FORMS = {
    ID_PATTERN: "must be 1 to 64 of A-Z a-z 0-9 . _ : - and begin with a letter, a digit or _",
    UUID_PATTERN: "must be a UUID in lower case with hyphens, like 7f0c2f5d-0f76-4a4c-93d0-f0b2e2891730",
    TIME_PATTERN: "must be an RFC 3339 time with an offset, like 2026-02-19T07:50:00Z",
    SHA256_PATTERN: "must be a SHA-256 in 64 lower-case hex digits",
    SCHEMA_PATTERN: "must be the name and version of a schema, like finding/1",
    PUBLIC_KEY_PATTERN: "must be an Ed25519 public key: 32 bytes in base64",
    ARTIFACT_HASH_PATTERN: "must be `sha256:` and 64 lower-case hex digits",
}


_ONTOLOGY = ["payload", "formula_bundle", "var_ontology"]


def refusal_of(error: ValidationError, tags: Set[str] = frozenset(), *, has_metadata: bool = False) -> PacketRefused:
    """Return the refusal SCHEMA_INVALID for the first error; the message counts the others.

    `tags` are those of a tagged union at the top, which begin every location and are not in the document.
    `has_metadata`: the document is a packet, whose metadata accepts unknown fields.
    """
    (path, message), *others = mistakes_of(error, tags)
    if has_metadata and message == UNKNOWN_FIELD:
        message += ", or move it into metadata"
    if others:
        message += f" (and {len(others)} more)"
    return PacketRefused("SCHEMA_INVALID", path, message)


def mistakes_of(error: ValidationError, tags: Set[str] = frozenset()) -> list[tuple[str, str]]:
    """Return path and message of every error; at least one. `tags` as in `refusal_of`."""
    errors = error.errors(include_url=False, include_input=False)
    return [(_path(one, tags), _message(one)[:MAX_MESSAGE_LENGTH]) for one in errors]


def _message(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if error["type"] == "string_pattern_mismatch":
        return _FORMS.get(context["pattern"], f"must match the pattern {context['pattern']}")
    if error["type"] == "union_tag_invalid":
        return "unknown value: use one of " + _ENUM_MEMBER.sub(r"\1", context["expected_tags"])
    if error["type"] in _MENDING:
        return _MENDING[error["type"]]
    return _ENUM_MEMBER.sub(r"\1", error["msg"]).replace("Input should be", "must be", 1)


def _path(error: ErrorDetails, tags: Set[str]) -> str:
    context: dict[str, Any] = error.get("ctx", {})
    path = ""
    for part in _place(error["loc"], tags):
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    if error["type"].startswith("union_tag"):
        path += "." + str(context["discriminator"]).strip("'")
    if error["type"] == "rule_broken" and context["path"]:
        path += "." + context["path"]
    return path.removeprefix(".")[:MAX_PATH_LENGTH] or "$"


def _place(location: tuple[int | str, ...], tags: Set[str]) -> list[int | str]:
    """Return the location without union tags and without the marker of a bad key."""
    parts = list(location)
    if parts and parts[0] in tags:
        del parts[0]
    if parts[:2] == ["payload", "objects"] and len(parts) > 3 and parts[3] in _OBJECT_TAGS:
        del parts[3]
    if parts[:2] == ["payload", "session"] and len(parts) > 2 and parts[2] in _SESSION_TAGS:
        del parts[2]
    if parts[:1] == ["payload"] and len(parts) > 1 and parts[1] in _EVAL_TAGS:
        del parts[1]
    if parts[:3] == _ONTOLOGY:  # a meaning is a text or an object, and pydantic names which
        del parts[4:]
    if parts and parts[-1] == "[key]":
        del parts[-1]
    return parts
