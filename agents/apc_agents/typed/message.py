"""A pydantic model as the content of MESSAGEs: its schema's name and version, its JSON Schema, and its payload."""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from apc_agents.errors import AgentError, AgentInvalid
from apc_contracts.contract_model import SchemaId
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import DecisionPayload, MessagePayload, Payload, SignalPayload
from apc_contracts.payloads.measurements import Result
from apc_contracts.payloads.questions import AgentRequest
from apc_contracts.vocabulary import CommitmentLevel

ModelT = TypeVar("ModelT", bound=BaseModel)

_SCHEMA: Final = "__apc_schema__"
_schema_ids: TypeAdapter[str] = TypeAdapter(SchemaId)


def message(schema_id: str) -> Callable[[type[ModelT]], type[ModelT]]:
    """Make a pydantic model the content of MESSAGEs of a schema, such as `finding/1`.

    A version never changes its content: give a changed model a new version.

    Raises:
        AgentInvalid: no name and version, not a model of named fields, or one that has no JSON Schema.
    """
    try:
        _schema_ids.validate_python(schema_id)
    except ValidationError as error:
        raise AgentInvalid(f"@message({schema_id!r}) is no name and version: write it like finding/1") from error

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
