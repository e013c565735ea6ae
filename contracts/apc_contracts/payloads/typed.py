"""Typed data of apc/1.1 that travels inside another payload."""

from pydantic import Field

from apc_contracts.contract_model import Model, OpenMap, SchemaId


class Result(Model):
    """What work, or a request, came to: `content` fits the registered schema. In JSON `schema_id` is `schema`."""

    schema_id: SchemaId = Field(alias="schema")
    content: OpenMap
