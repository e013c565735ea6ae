"""What is looked at in a model file before anything of it is built; needs skops alone."""

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

from apc_automl.model.model_types import FORMAT, TRUSTED

SCHEMA = "schema.json"

Schema = dict[str, Any]


def refusal_of_file(data: bytes) -> str | None:
    """Say why a model file is not loaded; None = each type in it is on the list.

    Broken bytes raise what zipfile and json raise.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        names = file.namelist()
        if len(set(names)) != len(names):
            return "this model file has two entries of one name; they are not loaded"
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in file.infolist()):
            return "this model file has compressed entries, which ours never have; they are not loaded"
        return refusal_of_schema(json.loads(file.read(SCHEMA)))


def refusal_of_schema(schema: Schema) -> str | None:
    """Say which type of a model's tree is not on the list; None = all are."""
    if schema.get("protocol") != FORMAT:
        return f"this model file has format {schema.get('protocol')!r}; only {FORMAT} is read"
    for node in nodes_of(schema):
        name = f"{node.get('__module__')}.{node.get('__class__')}"
        if name not in TRUSTED.get(str(node["__loader__"]), ()):
            loader = node["__loader__"]
            return f"this model file names {name} ({loader}), which no model of ours needs; it is not loaded"
    return None


def nodes_of(value: Any) -> Iterator[Schema]:
    """Yield every node below a value, however it is nested."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            if "__loader__" in one:
                yield one
            pending.extend(reversed(one.values()))
        elif isinstance(one, list | tuple):
            pending.extend(reversed(one))
