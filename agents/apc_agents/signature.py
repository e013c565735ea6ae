"""Checks a handler's signature when the agent is built, not when the first packet comes."""

import inspect
from collections.abc import Awaitable, Callable
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from apc_agents.errors import AgentInvalid
from apc_agents.typed.message import schema_of
from apc_contracts.packet import PAYLOAD_TYPES, Packet
from apc_contracts.payloads.by_type import EvalPayload, OpenEvalPayload, Payload
from apc_contracts.vocabulary import PacketType

_EVALS = (EvalPayload, OpenEvalPayload)
AnyHandler = Callable[..., Awaitable[Any]]


def check_handler(function: AnyHandler, packet_type: PacketType) -> None:
    """Check that a handler is `async def handler(packet: Packet[XPayload], ctx: HandlerContext)`.

    Raises:
        AgentInvalid: it is not async, takes other parameters, or expects or returns another payload.
    """
    _check_shape(function, 2, f"(packet: Packet[{PAYLOAD_TYPES[packet_type].__name__}], ctx: HandlerContext)")
    hints = _hints(function)
    first = next(iter(inspect.signature(function).parameters))
    if first in hints:
        _check_packet(function, hints[first], packet_type)
    if "return" in hints:
        _check_return(function, hints["return"])


def check_typed(function: AnyHandler, model: type[BaseModel]) -> None:
    """Check that a handler is `async def handler(content: Model, ctx: HandlerContext)`. Raises AgentInvalid."""
    _check_shape(function, 2, f"(content: {model.__name__}, ctx: HandlerContext)")
    hints = _hints(function)
    first = next(iter(inspect.signature(function).parameters))
    wanted = hints.get(first, model)
    if wanted is not Any and not (inspect.isclass(wanted) and issubclass(model, wanted)):
        shown = getattr(wanted, "__name__", wanted)
        raise AgentInvalid(
            f"{_name(function)} is registered for {model.__name__} but takes {shown}: annotate it as {model.__name__}"
        )
    if "return" in hints:
        _check_return(function, hints["return"])


def leaves_of_return(function: AnyHandler) -> list[Any]:
    """Return the types in a handler's return annotation, one by one; none without an annotation."""
    hints = _hints(function)
    return _leaves(hints["return"]) if "return" in hints else []


def check_start(function: AnyHandler) -> None:
    """Check that an on_start function is `async def begin(ctx: HandlerContext) -> None`. Raises AgentInvalid."""
    _check_shape(function, 1, "(ctx: HandlerContext)")


def check_listener(function: AnyHandler) -> None:
    """Check that an on_substrate function is `async def heard(packet: Packet, ctx: HandlerContext)`.

    Raises AgentInvalid.
    """
    _check_shape(function, 2, "(packet: Packet, ctx: HandlerContext)")


def _check_shape(function: AnyHandler, count: int, wanted: str) -> None:
    name = _name(function)
    if not inspect.iscoroutinefunction(function):
        raise AgentInvalid(f"{name} is not async: write `async def {name}{wanted}`")
    positional = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) != count or len(inspect.signature(function).parameters) != count:
        raise AgentInvalid(f"{name} takes other parameters than expected: write `async def {name}{wanted}`")


def _check_packet(function: AnyHandler, annotation: Any, packet_type: PacketType) -> None:
    expected = PAYLOAD_TYPES[packet_type]
    options = get_args(annotation) if _is_union(annotation) else (annotation,)
    if any(_accepts(option, expected) for option in options):
        return
    shown = getattr(annotation, "__name__", annotation)
    raise AgentInvalid(
        f"{_name(function)} is registered for {packet_type} but takes {shown}: "
        f"annotate it as Packet[{expected.__name__}]"
    )


def _accepts(annotation: Any, expected: type[Payload]) -> bool:
    if annotation is Any or annotation is Packet or get_origin(annotation) is Packet:
        return True
    if not (inspect.isclass(annotation) and issubclass(annotation, Packet)):
        return False
    payload = annotation.model_fields["payload"].annotation
    if expected is EvalPayload and (payload is OpenEvalPayload or _is_union(payload)):
        return payload is OpenEvalPayload or all((get_args(one) or (one,))[0] in _EVALS for one in get_args(payload))
    return payload is expected or payload is Any or payload is Payload or isinstance(payload, TypeVar)


def _check_return(function: AnyHandler, annotation: Any) -> None:
    for option in _leaves(annotation):
        if option in (None, type(None), Any, Ellipsis) or isinstance(option, TypeVar):
            continue
        if not (inspect.isclass(option) and (issubclass(option, Payload) or schema_of(option))):
            raise AgentInvalid(
                f"{_name(function)} returns {getattr(option, '__name__', option)}: "
                "return a payload or a model with @message, several of them, or None"
            )


def _leaves(annotation: Any) -> list[Any]:
    arguments = get_args(annotation)
    return [leaf for part in arguments for leaf in _leaves(part)] if arguments else [annotation]


def _is_union(annotation: Any) -> bool:
    return isinstance(annotation, UnionType) or get_origin(annotation) is Union


def _hints(function: AnyHandler) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError, AttributeError) as error:
        raise AgentInvalid(f"the annotations of {_name(function)} cannot be read: {error}") from error


def _name(function: AnyHandler) -> str:
    return getattr(function, "__qualname__", repr(function)).rpartition(".")[2]
