"""The outcomes of a handler's calls as JSON: what a call returned, or what it raised."""

import sys
from collections.abc import Callable
from typing import Any

import orjson

from apc_agents.errors import AgentError
from apc_contracts.agent import AgentContext
from apc_contracts.identity.registry import Right
from apc_contracts.packet import Packet
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import RunPhase
from apc_contracts.wire.parsing import parse_packet, seal

_PACKET = "$packet"

_OF_THE_HANDLER = frozenset({"once", "settle"})
"""Calls that return what the handler itself has made."""

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "snapshot": AgentContext.model_validate,
    "run_phase": RunPhase,
    "session_state": lambda found: None if found is None else SessionState.model_validate_json(orjson.dumps(found)),
    "sender_rights": lambda found: frozenset(map(Right, found)),
}


def encode_value(op: str, value: Any) -> Any:
    """Return what a call returned as JSON. Raises AgentError for what is no JSON."""
    if isinstance(value, Packet):
        return {_PACKET: seal(value).body.decode()}
    if isinstance(value, AgentContext | SessionState):
        return value.model_dump(mode="json")
    if isinstance(value, frozenset):
        return sorted(value)
    return _json(op, value)


def decode_value(op: str, value: Any) -> Any:
    """Return what a recorded call returned."""
    if op not in _OF_THE_HANDLER and isinstance(value, dict) and value.keys() == {_PACKET}:
        return parse_packet(value[_PACKET].encode())
    decode = _DECODERS.get(op)
    return value if decode is None else decode(value)


def encode_error(op: str, error: Exception) -> dict[str, Any]:
    """Return what a call raised as JSON. Raises AgentError when it holds something that is no JSON."""
    kind = type(error)
    held = {name: encode_value(op, value) for name, value in vars(error).items() if not name.startswith("_")}
    return {"module": kind.__module__, "name": kind.__qualname__, "args": _json(op, list(error.args)), "held": held}


def decode_error(op: str, raised: dict[str, Any]) -> Exception:
    """Return what a recorded call raised; an AgentError with its text when its class is gone."""
    kind: Any = sys.modules.get(raised["module"])
    for name in raised["name"].split("."):
        kind = getattr(kind, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return AgentError(f"{raised['name']}: {raised['args']}")
    error = kind.__new__(kind)
    error.args = tuple(raised["args"])
    for name, value in raised["held"].items():
        setattr(error, name, decode_value(op, value))
    return error


def _json(op: str, value: Any) -> Any:
    try:
        return orjson.loads(orjson.dumps(value))
    except TypeError as error:
        raise AgentError(
            f"the outcome of ctx.{op} cannot be recorded, so the handler cannot wait after it: {error}"
        ) from error
