"""The commands of `apc`, with their arguments and options."""

import inspect
from collections.abc import Iterator
from enum import EnumType
from typing import Any, Literal, get_args, get_origin

import typer
from tests.support.reference.markdown import code, one_line, table

from apc_cli.commands import COMMANDS, app, loaded


def command_tables() -> str:
    """Return an index and one section for each command."""
    commands = list(_commands(whole_command(), ("apc",)))
    index = table(
        ("command", "what it does"),
        [(f"[`{name}`](#{_anchor(name)})", _summary(command)) for name, command in commands],
    )
    return "\n\n".join([index, *(_section(name, command) for name, command in commands)])


def whole_command() -> Any:
    """Return `apc` with every group loaded."""
    whole: Any = typer.main.get_command(app)
    whole.commands |= {name: loaded(name) for name in COMMANDS}
    return whole


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, inner in sorted(command.commands.items()):
        if not inner.hidden:
            yield from _commands(inner, (*path, name))


def _section(name: str, command: Any) -> str:
    parts = [f"## `{name}`", inspect.cleandoc(command.help or "").strip()]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *(_metavar(one) for one in arguments)])
    parts.insert(1, f"```text\n{usage}\n```")
    rows = [
        (code(_names(one)), _kind(one), _default(one), one_line(getattr(one, "help", "")))
        for one in [*arguments, *options]
    ]
    if rows:
        parts.append(table(("argument or option", "type", "default", "meaning"), rows))
    return "\n\n".join(part for part in parts if part)


def _summary(command: Any) -> str:
    return one_line((command.help or "").split("\n\n")[0])


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper() + ("…" if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _metavar(parameter)
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _kind(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return "flag"
    kind = parameter.type_descriptor.annotation
    inner = get_args(kind)[0] if get_origin(kind) in (list, tuple) else kind
    if isinstance(inner, EnumType):
        members: list[Any] = list(inner)
        name = ", ".join(code(member.value) for member in members)
    elif get_origin(inner) is Literal:
        name = ", ".join(code(one) for one in get_args(inner))
    else:
        name = {"str": "text", "int": "integer", "float": "number"}.get(inner.__name__, inner.__name__.lower())
    return name + (", repeatable" if parameter.multiple or parameter.nargs == -1 else "")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default in (False, "", (), []) or callable(default):
        return ""
    return code(getattr(default, "value", default))


def _anchor(name: str) -> str:
    return name.replace(" ", "-")
