"""Export JSON Schema 2020-12 of everything on the wire: `python -m apc_contracts.schema_export FOLDER`.

The schemas are generated from the models and say what they say, as far as JSON Schema can. The rest is in each schema's
`$comment`.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from apc_contracts.agent import MAX_ACTIONS, MAX_SUB_LEVELS, AgentContext, AgentResponse
from apc_contracts.claim_check import TextReference
from apc_contracts.identity.registry_change import RegistryChange
from apc_contracts.packet import PACKET_TYPES, AnyPacket
from apc_contracts.payloads.by_type import HeartbeatPayload, SignalPayload
from apc_contracts.vocabulary import Channel, PacketType, Signal, TransferMode
from apc_contracts.wire.receipts import ReceiptFields

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_BYTES = (
    "Checked on the bytes, beyond JSON Schema: the size, levels and number of values of the document, no "
    "doubled keys, no NUL, no lone surrogate, no number beyond 2^53 - 1 without an exponent. Integers are "
    "written without a fraction; a time must exist in the calendar."
)
_RESPONSE_RULES = (
    f" Also: at most {MAX_ACTIONS} actions with their sub_actions, which nest at most {MAX_SUB_LEVELS} levels, and "
    "nothing of schema 2.0 in a document that says schema_version 1.0."
)
_PACKET_RULES = (
    " Also: a packet without parent_packet_id has root_packet_id = packet_id, one with a parent has not, and "
    "no packet is its own parent; winner_candidate_id is one of the candidates, and they and the swarms of a "
    "SessionSpec are distinct, and no agent stands in it twice; lineage and payload of a TRANSFER agree on protocol_id."
)


def packet_schema() -> Schema:
    """Return the schema of a packet: a discriminated oneOf of the types with their payloads."""
    schema = _schema_of(AnyPacket, "packet", "An APC/1.0 packet", _BYTES + _PACKET_RULES)
    definitions = schema["$defs"]
    for kind, packet in PACKET_TYPES.items():
        rules = [_if_then({"channel": {"const": Channel.INTRA_AGENT}}, {"recipients": {"maxItems": 1}})]
        if kind is PacketType.TRANSFER:
            rules += [_modes_agree(mode) for mode in TransferMode]
        definitions[packet.__name__]["allOf"] = rules
    for payload in (SignalPayload, HeartbeatPayload):
        definitions[payload.__name__]["allOf"] = _session_fits_signal()
    return schema


def receipts_schema() -> Schema:
    """Return the schema of a receipts message."""
    return _schema_of(list[ReceiptFields], "receipts", "Receipts of deliveries", _BYTES)


def registry_change_schema() -> Schema:
    """Return the schema of a registry change."""
    return _schema_of(RegistryChange, "registry-change", "A change of the registry", _BYTES)


def agent_response_schema() -> Schema:
    """Return the schema of an LLM agent's answer (v1.0 and v2.0)."""
    return _schema_of(AgentResponse, "agent-response", "An agent's response", _BYTES + _RESPONSE_RULES)


def agent_context_schema() -> Schema:
    """Return the schema of the context object of an agent (Agent Context Protocol 1.1)."""
    return _schema_of(AgentContext, "agent-context", "An agent's context", "Unknown fields are kept.")


def claim_check_schema() -> Schema:
    """Return the schema of `metadata.claim_check` of a packet whose long texts are in the artifact store."""
    comment = "Also: at each path of the packet stands the hash, and the object of that hash has `size` bytes of UTF-8."
    return _schema_of(list[TextReference], "claim-check", "Texts of a packet in the artifact store", comment)


SCHEMAS: Mapping[str, Callable[[], Schema]] = MappingProxyType(
    {
        "agent-context.schema.json": agent_context_schema,
        "agent-response.schema.json": agent_response_schema,
        "claim-check.schema.json": claim_check_schema,
        "packet.schema.json": packet_schema,
        "receipts.schema.json": receipts_schema,
        "registry-change.schema.json": registry_change_schema,
    }
)
"""File name -> the function that returns its schema."""


def schema_text(schema: Schema) -> str:
    """Return a schema as its file stands in git: keys sorted, indented, with a newline at the end."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def export_schemas(folder: Path) -> None:
    """Write every schema into a folder."""
    for name, make in SCHEMAS.items():
        (folder / name).write_text(schema_text(make()), encoding="utf-8")


def _schema_of(model: Any, name: str, title: str, comment: str) -> Schema:
    schema: Schema = TypeAdapter(model).json_schema()
    for definition in (schema, *schema.get("$defs", {}).values()):
        _require_tags(definition)
        for rule in definition.get("properties", {}).values():
            _close_maps(rule)
    head = {"$schema": DIALECT, "$id": f"urn:apc:1.0:{name}", "title": title, "$comment": comment}
    return {**schema, **head}


def _require_tags(definition: Schema) -> None:
    """Require the tag in documents; it has a default only for code that builds the model."""
    for field, rule in definition.get("properties", {}).items():
        if "const" in rule:
            rule.pop("default", None)
            definition["required"] = sorted({*definition.get("required", ()), field})


def _close_maps(rule: Schema) -> None:
    """Forbid other keys in a map whose keys have a pattern."""
    for option in (rule, *rule.get("anyOf", ())):
        if "patternProperties" in option:
            option["additionalProperties"] = False


def _if_then(condition: Schema, consequence: Schema) -> Schema:
    return {
        "if": {"properties": condition, "required": list(condition)},
        "then": {"properties": consequence},
    }


def _modes_agree(mode: TransferMode) -> Schema:
    """Return the rule that with a lineage of this mode the payload has the same mode."""
    lineage = {
        "type": "object",
        "properties": {"transfer_mode": {"const": mode}},
        "required": ["transfer_mode"],
    }
    policy = {"properties": {"transfer_policy": {"properties": {"mode": {"const": mode}}}}}
    return _if_then({"lineage": lineage}, {"payload": policy})


def _session_fits_signal() -> list[Schema]:
    none = {"type": "null"}
    others = [str(signal) for signal in Signal if signal not in (Signal.START, Signal.SYNC)]
    return [
        _if_then({"signal": {"const": Signal.START}}, {"session": _ref_or(none, "SessionSpec")}),
        _if_then({"signal": {"const": Signal.SYNC}}, {"session": _ref_or(none, "SessionState")}),
        _if_then({"signal": {"enum": others}}, {"session": none}),
    ]


def _ref_or(other: Schema, definition: str) -> Schema:
    return {"anyOf": [{"$ref": f"#/$defs/{definition}"}, other]}


if __name__ == "__main__":
    export_schemas(Path(sys.argv[1]))
