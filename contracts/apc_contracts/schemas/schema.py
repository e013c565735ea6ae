"""A registered schema: its identity, and whether content fits it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, NoReturn

from apc_contracts.errors import PacketRefused, SchemaUnusable
from apc_contracts.schemas.schema_checks import check_document, identity_of
from apc_contracts.wire.canonical import canonical_json

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMAS = 4_096
"""In a registry: the gate keeps all of them."""
MAX_PATTERN_BYTES = 64 * 1024
"""Of a compiled pattern. The engine is linear; patterns that need backtracking are refused."""
_LONGEST_MESSAGE = 200


@dataclass(frozen=True, slots=True)
class ContentFault:
    """Why content fits no schema: the path in the packet, and the schema's hash ("" = there is no such schema)."""

    path: str
    message: str
    schema_hash: str


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema under its name and version. `hash` is the SHA-256 of its identity, annotations aside, in JCS form."""

    schema_id: str
    document: Mapping[str, Any] = field(repr=False)
    hash: bytes

    @cached_property
    def _validator(self) -> Any:
        return _compiled(dict(self.document))

    def fault(self, content: Mapping[str, Any], path: str) -> ContentFault | None:
        """Return the first place where the content does not fit; `path` is the content's own in the packet."""
        validator = self._validator
        if validator.is_valid(content):
            return None
        error = next(iter(validator.iter_errors(content)))
        for part in error.instance_path:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
        return ContentFault(path, f"{error.message[:_LONGEST_MESSAGE]} ({self.schema_id})", self.hash.hex())


def register_schema(schema_id: str, document: Any) -> RegisteredSchema:
    """Return a schema that is safe to judge by.

    Raises:
        SchemaUnusable: what is wrong with the document, and where.
    """
    check_document(document)
    _compiled(document)
    return known_schema(schema_id, document)


def known_schema(schema_id: str, document: Mapping[str, Any]) -> RegisteredSchema:
    """Return a schema that was checked when it was registered.

    Raises:
        SchemaUnusable: it is too large.
    """
    try:
        if len(canonical_json(document)) > MAX_SCHEMA_BYTES:
            raise SchemaUnusable("$", f"larger than {MAX_SCHEMA_BYTES} bytes: split the message")
        identity = canonical_json(identity_of(document))
    except (PacketRefused, RecursionError) as error:
        raise SchemaUnusable("$", f"no canonical JSON ({error}): send plain, finite JSON") from error
    return RegisteredSchema(schema_id, document, sha256(identity).digest())


def _compiled(document: dict[str, Any]) -> Any:
    # Slow to import, and needed by gates and operators only.
    import jsonschema_rs

    try:
        return jsonschema_rs.Draft202012Validator(
            document,
            validate_formats=False,
            retriever=_fetch_nothing,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES),
            mask="this value",
        )
    except (ValueError, jsonschema_rs.ValidationError) as error:
        place = ".".join(["$", *(str(part) for part in getattr(error, "instance_path", ()))])
        text = str(getattr(error, "message", error)).splitlines()[0][:_LONGEST_MESSAGE]
        if text.endswith('is not a "regex"'):
            text += ": write it without lookaround, backreferences and large repetitions"
        raise SchemaUnusable(place, text) from error


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not fetched: name definitions in $defs")
