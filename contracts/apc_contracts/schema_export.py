"""Export JSON Schema 2020-12 of everything on the wire: `python -m apc_contracts.schema_export FOLDER`.

The schemas are generated from the models and say what they say, as far as JSON Schema can. The rest is in each schema's
`$comment`.
"""

import json
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from apc_contracts.agent import MAX_ACTIONS, MAX_SUB_LEVELS, AgentContext, AgentResponse
from apc_contracts.claim_check import TextReference
from apc_contracts.identity.registry_change import RegistryChange
from apc_contracts.packet import PACKET_TYPES, AnyPacket
from apc_contracts.payloads.by_type import AnswerOutcome, AnswerSpec, HeartbeatPayload, MetricLimit, SignalPayload
from apc_contracts.payloads.session_signals import NEW_FIELDS, SessionSpec, SessionState, TaskSessionSpec, WakeSpec
from apc_contracts.vocabulary import (
    FIELDS_OF_SIGNAL,
    PROTOCOL_1_1,
    PROTOCOL_VERSION,
    SIGNALS_OF_1_1,
    Channel,
    PacketType,
    Signal,
    TransferMode,
)
from apc_contracts.wire.receipts import ReceiptFields

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_BYTES = (
    "Checked on the bytes, beyond JSON Schema: the size, levels and number of values of the document, no "
    "doubled keys, no NUL, no lone surrogate, no number beyond 2^53 - 1 without an exponent. A time must exist in "
    "the calendar."
)
_RESPONSE_RULES = (
    f" Also: at most {MAX_ACTIONS} actions with their sub_actions, which nest at most {MAX_SUB_LEVELS} levels, and "
    "nothing of schema 2.0 in a document that says schema_version 1.0."
)
_PACKET_RULES = (
    " Also: a packet without parent_packet_id has root_packet_id = packet_id, one with a parent has not, and "
    "no packet is its own parent; winner_candidate_id is one of the candidates, and they and the swarms of a "
    "SessionSpec are distinct, and no agent stands in it twice, nor a name in the lists of a TaskSessionSpec; lineage "
    "and payload of a TRANSFER agree on protocol_id; limits are of metrics, and min is at most max."
)


def packet_schema() -> Schema:
    """Return the schema of a packet: a discriminated oneOf of the types with their payloads."""
    schema = _schema_of(AnyPacket, "packet", "An APC/1.0 packet", _BYTES + _PACKET_RULES)
    definitions = schema["$defs"]
    for kind, packet in PACKET_TYPES.items():
        rules = [_if_then({"channel": {"const": Channel.INTRA_AGENT}}, {"recipients": {"maxItems": 1}})]
        definitions[packet.__name__]["allOf"] = rules + _RULES_OF_TYPE.get(kind, [])
    for payload in (SignalPayload, HeartbeatPayload):
        definitions[payload.__name__]["allOf"] = _session_fits_signal()
    definitions[SignalPayload.__name__]["allOf"] += _fields_fit_signal()
    definitions[HeartbeatPayload.__name__]["allOf"].append({"properties": {"signal": _NOT_OF_1_1}})
    definitions[AnswerSpec.__name__]["allOf"] = [
        _if_then({"outcome": {"const": AnswerOutcome.ANSWERED}}, _given("result"), _absent("result"))
    ]
    definitions[WakeSpec.__name__]["allOf"] = [_one_of("after_ms", "at")]
    definitions[MetricLimit.__name__]["allOf"] = [{"anyOf": [_given("min"), _given("max")]}]
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
        _describe_fields(definition)
        _require_tags(definition)
        for rule in definition.get("properties", {}).values():
            _close_maps(rule)
    head = {"$schema": DIALECT, "$id": f"urn:apc:1.0:{name}", "title": title, "$comment": comment}
    return {**schema, **head}


_ATTRIBUTES = "\n\nAttributes:\n"


def _describe_fields(definition: Schema) -> None:
    """Move what a docstring says of each attribute to the property."""
    description, found, attributes = definition.get("description", "").partition(_ATTRIBUTES)
    if not found:
        return
    definition["description"] = description
    for line in textwrap.dedent(attributes).replace("\n    ", " ").splitlines():
        name, _, meaning = line.partition(": ")
        name = {"schema_id": "schema", "passed": "pass"}.get(name, name)
        if name in definition["properties"]:
            definition["properties"][name]["description"] = meaning


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


def _if_then(condition: Schema, consequence: Schema, otherwise: Schema | None = None) -> Schema:
    """Return a rule: `condition` has properties; `consequence` and `otherwise` have them, or are whole schemas."""
    rule = {"if": {"properties": condition, "required": list(condition)}, "then": _whole(consequence)}
    return rule if otherwise is None else {**rule, "else": _whole(otherwise)}


def _whole(schema: Schema) -> Schema:
    return schema if schema.keys() & {"properties", "oneOf"} else {"properties": schema}


def _given(*names: str) -> Schema:
    return {"properties": {name: {"not": _NULL} for name in names}, "required": list(names)}


def _absent(*names: str) -> Schema:
    return {"properties": {name: _NULL for name in names}}


def _one_of(*names: str) -> Schema:
    return {"oneOf": [_given(name) for name in names]}


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
    others = [str(signal) for signal in Signal if signal not in (Signal.START, Signal.SYNC)]
    specs = [SessionSpec.__name__, TaskSessionSpec.__name__]
    return [
        _if_then({"signal": {"const": Signal.START}}, {"session": _null_or(*specs)}),
        _if_then({"signal": {"const": Signal.SYNC}}, {"session": _null_or(SessionState.__name__)}),
        _if_then({"signal": {"enum": others}}, {"session": _NULL}),
    ]


def _fields_fit_signal() -> list[Schema]:
    """Return the rules that each field goes with its signal, which carries exactly one of its fields."""
    rules = [
        _if_then({"signal": {"const": signal}}, _one_of(*names), _absent(*names))
        for signal, names in FIELDS_OF_SIGNAL.items()
    ]
    return [*rules, _if_then({"signal": {"const": Signal.ASK}}, _given("expected_response_by"))]


def _null_or(*definitions: str) -> Schema:
    return {"anyOf": [*({"$ref": f"#/$defs/{definition}"} for definition in definitions), _NULL]}


_NULL: Schema = {"type": "null"}
_NOT_OF_1_1: Schema = {"not": {"enum": sorted(SIGNALS_OF_1_1)}}
_OF_1_0: Schema = {"protocol_version": {"const": PROTOCOL_VERSION}}
_RULES_OF_TYPE: Mapping[PacketType, list[Schema]] = {
    PacketType.TRANSFER: [_modes_agree(mode) for mode in TransferMode],
    PacketType.SIGNAL: [
        _if_then(
            _OF_1_0,
            {"payload": {"properties": {"signal": _NOT_OF_1_1, "session": _absent(*NEW_FIELDS)}}},
        )
    ],
    PacketType.EVAL: [_if_then(_OF_1_0, {"payload": {"required": ["metric_set"]}})],
    PacketType.DECISION: [_if_then(_OF_1_0, {"payload": _absent("result")})],
    PacketType.MESSAGE: [{"properties": {"protocol_version": {"const": PROTOCOL_1_1}}}],
}


if __name__ == "__main__":
    export_schemas(Path(sys.argv[1]))
