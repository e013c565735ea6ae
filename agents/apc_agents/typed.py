"""A pydantic model as the content of MESSAGEs: its schema's name and version, its JSON Schema, and its payload."""

import inspect
import re
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from types import UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, RootModel, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from apc_agents.errors import AgentError, AgentInvalid, Reject
from apc_contracts.answers import DECIMAL, AnswerSchema, check_answer_schema
from apc_contracts.contract_model import SCHEMA_PATTERN
from apc_contracts.errors import SchemaUnusable
from apc_contracts.packet import PAYLOAD_TYPES, Packet
from apc_contracts.payloads.by_type import (
    AgentRequest,
    DecisionPayload,
    EvalPayload,
    MessagePayload,
    OpenEvalPayload,
    Payload,
    Result,
    SignalPayload,
)
from apc_contracts.vocabulary import CommitmentLevel, PacketType

ModelT = TypeVar("ModelT", bound=BaseModel)

_SCHEMA: Final = "__apc_schema__"
_is_schema_id = re.compile(SCHEMA_PATTERN).fullmatch


def message(schema_id: str) -> Callable[[type[ModelT]], type[ModelT]]:
    """Make a pydantic model the content of MESSAGEs of a schema, such as `finding/1`.

    A version never changes its content: give a changed model a new version.

    ```python
    @message("finding/1")
    class Finding(BaseModel):
        service: str
        seconds: float = 0.0


    @desk.on(Finding)
    async def note(finding: Finding, ctx: HandlerContext) -> None:
        ctx.state.setdefault("slow", []).append(finding.service)


    async with AgentTestClient(desk) as client:
        await client.send(Finding(service="checkout", seconds=4.2))
        assert await client.state() == {"slow": ["checkout"]}
    ```

    Args:
        schema_id: name and version, `name/1`; how the model is called on the wire and in rules.

    Raises:
        AgentInvalid: no name and version, not a model of named fields, or one that has no JSON Schema.
    """
    if not isinstance(schema_id, str) or not _is_schema_id(schema_id):
        raise AgentInvalid(f"@message({schema_id!r}) is no name and version: write it like finding/1")

    def decorate(model: type[ModelT]) -> type[ModelT]:
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or issubclass(model, RootModel):
            name = getattr(model, "__name__", repr(model))
            raise AgentInvalid(
                f"@message({schema_id!r}) stands above {name}: it takes a pydantic BaseModel with fields"
            )
        setattr(model, _SCHEMA, schema_id)
        return model

    return decorate


def schema_of(model: type) -> str | None:
    """Return the schema of a model; None when it is not decorated itself, whatever its base classes are."""
    return cast("str | None", vars(model).get(_SCHEMA))


def document_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of what a model serializes to, by alias. Raises AgentInvalid when it has none."""
    try:
        return model.model_json_schema(by_alias=True, mode="serialization")
    except PydanticUserError as error:
        raise AgentInvalid(f"{model.__name__} has no JSON Schema: {error.message}") from error


# The answer of people as a model: its schema goes with the question, and what they fill in becomes the model.


class _AnswerSchemas(GenerateJsonSchema):
    """The schema of what people fill in: a decimal is a text, so that no digit is lost, with its bounds beside it."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> dict[str, Any]:
        document: dict[str, Any] = {"type": "string", "format": DECIMAL}
        for constraint, keyword in _DECIMAL_BOUNDS.items():
            bound: Any = schema.get(constraint)
            if bound is not None:
                document[keyword] = int(bound) if bound == int(bound) else float(bound)
        places, digits = schema.get("decimal_places"), schema.get("max_digits")
        if places is not None:
            before = rf"0*\d{{0,{digits - places}}}" if digits is not None else r"\d*"
            document["pattern"] = rf"^[+-]?{before}(\.\d{{0,{places}}})?$"
        return document


_DECIMAL_BOUNDS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def answer_schema_of(model: Any) -> AnswerSchema:
    """Return the schema of what people fill in to answer with this model: by alias, and no other fields.

    Raises:
        AgentError: it is no model of named fields, or its schema cannot go with a question.
    """
    name = getattr(model, "__name__", repr(model))
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or issubclass(model, RootModel):
        raise AgentError(f"ctx.ask(returns={name}) takes a pydantic BaseModel with fields")
    try:
        document = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_AnswerSchemas)
    except PydanticUserError as error:
        raise AgentError(f"ctx.ask(returns={name}): {name} has no JSON Schema: {error.message}") from error
    if "properties" in document:
        document.setdefault("additionalProperties", False)
    try:
        return check_answer_schema(document)
    except SchemaUnusable as error:
        raise AgentError(f"ctx.ask(returns={name}): people cannot be asked for it: {error}") from error


def payload_of(value: Any) -> Payload:
    """Return a payload as it is, and the MESSAGE of a decorated model.

    Raises:
        AgentError: it is neither.
    """
    if isinstance(value, Payload):
        return value
    schema_id = schema_of(type(value))
    if schema_id is None or not isinstance(value, BaseModel):
        raise AgentError(
            f"{type(value).__name__} is no payload: give a payload class, or a model that is decorated with "
            '@message("name/1")'
        )
    return MessagePayload(schema_id=schema_id, content=value.model_dump(mode="json", by_alias=True))


def done_with(result: BaseModel | None, decision_id: str, recommendation: str) -> DecisionPayload:
    """Return the DECISION DONE that ends a task, with a decorated model as its result. Raises AgentError."""
    typed = None if result is None else payload_of(result)
    if typed is not None and not isinstance(typed, MessagePayload):
        raise AgentError(
            f'{type(result).__name__} is no result: give a model that is decorated with @message("name/1")'
        )
    return DecisionPayload(
        decision_id=decision_id,
        recommendation=recommendation,
        priority_distribution={},
        next_actions=(),
        commitment_level=CommitmentLevel.DONE,
        result=None if typed is None else Result(schema_id=typed.schema_id, content=typed.content),
    )


def content_of(packet: Packet, model: type[ModelT]) -> ModelT:
    """Return the content of a MESSAGE, or of a request, as a model.

    ```python
    @desk.on(Question)
    async def reply(question: Question, ctx: HandlerContext) -> Answer:
        assert content_of(ctx.packet, Question) == question
        return Answer(text="because")


    async with AgentTestClient(desk) as client:
        assert content_of(await client.send(Question(text="why")), Answer).text == "because"
    ```

    Args:
        packet: as a handler has it in `ctx.packet`.
        model: decorated with `@message`.

    Raises:
        AgentError: the packet is no MESSAGE nor request of this model's schema.
        pydantic.ValidationError: the content does not fit the model.
    """
    payload: Payload | AgentRequest | None = packet.payload
    if isinstance(payload, SignalPayload):
        payload = payload.request
    if not isinstance(payload, MessagePayload | AgentRequest) or payload.schema_id != schema_of(model):
        what = payload.schema_id if isinstance(payload, MessagePayload | AgentRequest) else packet.packet_type
        raise AgentError(f"packet {packet.packet_id} is no {model.__name__} ({schema_of(model)}): it is {what}")
    return model.model_validate(payload.content, by_alias=True, by_name=False)


# Checks a handler's signature when the agent is built, not when the first packet comes.

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


def with_dependencies(function: AnyHandler, count: int) -> AnyHandler:
    """Return a handler whose parameters after the first `count` FastStream resolves; itself when it has no such."""
    if "faststream" not in sys.modules or len(inspect.signature(function).parameters) <= count:
        return function
    _hints(function)  # they can be read
    from apc_bus.rabbit.faststream import resolved  # late: it takes half a second to import

    return resolved(function, count)


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


# Handlers that take and return models: checked when the agent is built, called with the content of a MESSAGE.

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
