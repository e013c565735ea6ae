"""Register schemas: check them here, send them to the gates, wait until the log has them."""

from collections.abc import Mapping
from typing import Any

import asyncpg
from pydantic import TypeAdapter, ValidationError

from apc_bus.port import Bus
from apc_client.registry.agents import publish_in_turn
from apc_contracts.contract_model import SchemaId
from apc_contracts.errors import SchemaUnusable
from apc_contracts.identity.ids import keyed_id
from apc_contracts.identity.registry_change import SchemaAdded
from apc_contracts.schemas.schema import RegisteredSchema, register_schema
from apc_log.registry import read_schemas
from apc_web.errors import InputUnusable

_schema_ids: TypeAdapter[str] = TypeAdapter(SchemaId)


async def register_schemas(
    bus: Bus, pool: asyncpg.Pool, shards: int, documents: Mapping[str, Mapping[str, Any]]
) -> list[RegisteredSchema]:
    """Register schemas by their id, such as finding/1; those that the log has already are sent again harmlessly.

    Raises:
        InputUnusable: one is unsafe, or its version is registered with other content.
        ShardsUnconfirmed: a shard has not logged it in time; says which.
    """
    known, made = await read_schemas(pool), []
    for schema_id, document in documents.items():
        schema = usable_schema(schema_id, document)
        if schema_id in known and known[schema_id].hash != schema.hash:
            raise InputUnusable(f"the schema {schema_id} is registered with other content: give it a new version")
        made.append(schema)
    for schema in made:
        await publish_in_turn(bus, pool, addition_of(schema), shards)
    return made


def usable_schema(schema_id: str, document: Any) -> RegisteredSchema:
    """Return a schema that is safe to judge by. Raises InputUnusable with the place of the mistake."""
    try:
        _schema_ids.validate_python(schema_id)
        return register_schema(schema_id, document)
    except ValidationError as error:
        raise InputUnusable(f"{schema_id!r} is no name and version: write it like finding/1") from error
    except SchemaUnusable as error:
        raise InputUnusable(f"schema {schema_id} at {error.place}: {error.message}") from error


def addition_of(schema: RegisteredSchema) -> SchemaAdded:
    """Return the change that registers a schema; its id follows from the content, so that repeating is safe."""
    change_id = keyed_id("schema", schema.schema_id, schema.hash.hex())
    return SchemaAdded(change_id=change_id, schema_id=schema.schema_id, document=schema.document)
