"""The settings, by the class that declares them."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from tests.support.reference.markdown import code, one_line, table

from apc_bus.settings import SERVICES, ApcSettings, all_settings, read_by, variable_of


def settings_tables() -> str:
    """Return one section for each class that declares settings."""
    readers = _readers()
    return "\n\n".join(_section(kind, readers) for kind in _declaring())


def _section(kind: type[ApcSettings], readers: Mapping[str, list[str]]) -> str:
    meanings = _meanings(kind)
    rows = [
        (
            code(variable_of(kind, name)),
            _type(kind, name),
            _default(field),
            _bounds(field),
            _who(readers[variable_of(kind, name)]),
            one_line(meanings.get(name)),
        )
        for name, field in kind.model_fields.items()
        if name in vars(kind).get("__annotations__", {})
    ]
    title = kind.__name__.removesuffix("Settings")
    header = ("variable", "type", "default", "range", "read by", "meaning")
    return f"## {title}\n\n{one_line(kind.__doc__)}\n\n{table(header, rows)}"


def _declaring() -> Iterator[type[ApcSettings]]:
    seen: dict[str, type[ApcSettings]] = {}
    for kind in all_settings():
        for base in kind.__mro__:
            if issubclass(base, ApcSettings) and base is not ApcSettings and vars(base).get("__annotations__"):
                seen[base.__name__] = base
    yield from (seen[name] for name in sorted(seen))


def _readers() -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {}
    for reader, kinds in read_by().items():
        for kind in kinds:
            for name in kind.model_fields:
                users = readers.setdefault(variable_of(kind, name), [])
                if reader not in users:
                    users.append(reader)
    return readers


def _who(users: list[str]) -> str:
    return "all" if set(users) >= SERVICES else ", ".join(users)


def _meanings(kind: type[ApcSettings]) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)):
            continue
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            found[field.target.id] = str(text.value.value)
    return found


def _type(kind: type[ApcSettings], name: str) -> str:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for field in definition.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id == name:
            return code(ast.unparse(field.annotation))
    raise LookupError(name)


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None or field.default is PydanticUndefined:
        return "computed" if field.default_factory is not None else "required"
    return "none" if field.default is None else code(field.default)


def _bounds(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [
        f"{sign} {getattr(one, name)}" for one in field.metadata for name, sign in signs.items() if hasattr(one, name)
    ]
    return ", ".join(found)
