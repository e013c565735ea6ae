"""Handlers that take and return models: checked when the agent is built, called with the content of a MESSAGE."""

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from apc_agents.errors import AgentInvalid, Reject
from apc_agents.signature import AnyHandler, check_typed, leaves_of_return
from apc_agents.typed.message import content_of, payload_of, schema_of
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import Payload

_TAKES: Final = "__apc_model__"


def schema_handled(model: type) -> str:
    """Return the schema that a handler of this model takes. Raises AgentInvalid when it is not decorated."""
    schema_id = schema_of(model)
    if schema_id is None:
        raise AgentInvalid(f'{model.__name__} has no schema: decorate it with @message("{model.__name__.lower()}/1")')
    return schema_id


def typed_handler(function: AnyHandler, model: type[BaseModel]) -> Callable[[Packet, Any], Awaitable[Any]]:
    """Return the handler of MESSAGEs that calls `async def handler(content: Model, ctx: HandlerContext)`.

    Content that the registered schema allows and the model refuses (by a validator, say) is rejected.

    Raises:
        AgentInvalid: the function does not fit the model.
    """
    check_typed(function, model)
    name = model.__name__

    @wraps(function)
    async def handle(packet: Packet, ctx: Any) -> Any:
        try:
            content = content_of(packet, model)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(["payload.content", *map(str, first["loc"])])
            raise Reject(f"{place}: {first['msg']} ({name})") from error
        return payloads_of(await function(content, ctx))

    setattr(handle, _TAKES, model)
    return handle


def payloads_of(result: Any) -> tuple[Payload, ...]:
    """Return what a handler returned (a payload or model, several of them, or None) as payloads. Raises AgentError."""
    if result is None:
        return ()
    several = result if isinstance(result, list | tuple) else (result,)
    return tuple(map(payload_of, several))


def models_of(function: AnyHandler) -> frozenset[type[BaseModel]]:
    """Return the decorated models that a handler takes and returns, and those in its reach: it may emit them."""
    inner = inspect.unwrap(function)
    reach = inspect.getclosurevars(inner).nonlocals.values()
    known = [getattr(function, _TAKES, None), *leaves_of_return(inner), *reach, *inner.__globals__.values()]
    return frozenset(one for one in known if isinstance(one, type) and issubclass(one, BaseModel) and schema_of(one))
