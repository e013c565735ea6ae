"""The API of the web console: its operations, and the fields of what they take and return."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from tests.support.reference.markdown import code, one_line, table

from apc_web.access import AccountRole
from apc_web.app import ROUTERS, openapi_bytes
from apc_web.models import ApiModel
from apc_web.roles import RoleRoute, shown_fields

_ERRORS = {"400", "401", "403", "404", "405", "409", "413", "415", "421", "422", "429", "503"}
"""Statuses of which each operation may return each, as a problem."""


def operation_table() -> str:
    """Return one row for each operation, by its path."""
    header = ("operation", "method and path", "role", "parameters", "body", "answer")
    return table(header, sorted(_operations(_document())))


def field_table() -> str:
    """Return one row for each field of each model, by their names."""
    return table(("model", "field", "type", "a viewer sees it"), sorted(_fields(_document()["components"]["schemas"])))


def roles_of_routes() -> dict[str, AccountRole | None]:
    """Return the role that each operation needs; None = it is for those who have not logged in."""
    return {route.name: route.role for router in ROUTERS for route in router.routes if isinstance(route, RoleRoute)}


def _document() -> Any:
    return orjson.loads(openapi_bytes())


def _operations(document: Any) -> Iterator[tuple[str, ...]]:
    roles = roles_of_routes()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = operation["operationId"]
            parameters = sorted(
                code(f"{one['name']}: {_type(one['schema'])}" + ("" if one["required"] else "?"))
                for one in operation.get("parameters", ())
            )
            answers = [
                f"{status} {_content(answer)}".strip()
                for status, answer in sorted(operation["responses"].items())
                if status not in _ERRORS
            ]
            yield (
                code(name),
                code(f"{method.upper()} {path}"),
                roles[name] or "none",
                ", ".join(parameters),
                _content(operation.get("requestBody", {})),
                ", ".join(answers),
            )


def _content(part: Mapping[str, Any]) -> str:
    kinds = [f"{_type(content.get('schema', {})) or kind}" for kind, content in part.get("content", {}).items()]
    return ", ".join(map(code, sorted(kinds)))


def _models(base: type[ApiModel] = ApiModel) -> Iterator[tuple[str, type[ApiModel]]]:
    for model in base.__subclasses__():
        yield model.__name__, model
        yield from _models(model)


def _fields(schemas: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    models = dict(_models())
    for model, schema in schemas.items():
        for name, field in schema.get("properties", {}).items():
            mark = "" if name in schema.get("required", ()) else "?"
            shown = "yes" if model in models and name in shown_fields(models[model]) else ""
            yield code(model), code(f"{name}{mark}"), code(_type(field)), shown
        if "enum" in schema:
            yield code(model), "", code(_type(schema)), ""


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a schema in the notation of Python."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f'"{one}"' for one in schema["enum"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    kind = schema.get("format") or schema.get("contentMediaType") or schema.get("type", "")
    if kind == "array":
        return f"list[{_type(schema.get('items', {}))}]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"dict[str, {_type(schema['additionalProperties'])}]"
    bounds = [f"{word} {schema[key]}" for key, word in _BOUNDS.items() if key in schema]
    return one_line(" ".join([kind, *bounds]))


_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "minLength": "length ≥",
    "maxLength": "length ≤",
    "minItems": "items ≥",
    "maxItems": "items ≤",
    "pattern": "like",
}
