"""The slash commands of a chat."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from apc_agents.context import ArgumentInvalid
from apc_agents.llm import Dialogue
from apc_console.errors import InputUnusable

Run = Callable[[Dialogue, str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command. `run` returns the JSON to show."""

    usage: str
    help: str
    run: Run


async def _help(dialogue: Dialogue, words: str) -> list[dict[str, str]]:
    return [{"command": command.usage, "what": command.help} for command in COMMANDS.values()]


async def _compress(dialogue: Dialogue, words: str) -> dict[str, Any]:
    before = (await dialogue.props()).document["pressure"]
    target = None
    if words:
        try:
            target = float(words)
        except ValueError as error:
            raise ArgumentInvalid("target", f"{words!r} is no number in 0..1") from error
    props = await dialogue.compress(target)
    return {"before": before, "after": props.document["pressure"]}


async def _clear(dialogue: Dialogue, words: str) -> dict[str, Any]:
    await dialogue.clear()
    return {"cleared": dialogue.session_id}


async def _history(dialogue: Dialogue, words: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = (await dialogue.props()).document["messages"]
    return [{name: message[name] for name in ("timestamp", "role", "content", "isPreserved")} for message in messages]


async def _tasks(dialogue: Dialogue, words: str) -> list[dict[str, Any]]:
    documents = [task.to_document() for task in await dialogue.own_tasks()]
    shown = ("task_id", "status", "action", "params", "progress", "note", "result", "error")
    return [{name: document[name] for name in shown} for document in documents]


async def _stream(dialogue: Dialogue, words: str) -> Any:
    path, *assignments = words.split()
    return await dialogue.resolve(path, **dict(map(_assignment, assignments)))


def _assignment(text: str) -> tuple[str, Any]:
    name, is_there, value = text.partition("=")
    if not (name.isidentifier() and is_there):
        raise ArgumentInvalid(text, "write name=value")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


COMMANDS: Final[Mapping[str, Command]] = {
    "compress": Command("/compress [target]", "fold what may be folded, to a pressure in 0..1", _compress),
    "clear": Command("/clear", "end the conversation and forget it", _clear),
    "history": Command("/history", "what is in the window", _history),
    "tasks": Command("/tasks", "what was started and goes on, or has ended", _tasks),
    "stream": Command("/stream PATH [name=value …]", "an operation such as self.stream.pressure.check", _stream),
    "help": Command("/help", "this list", _help),
    "quit": Command("/quit", "leave; the conversation stays", _help),
}


def parse_command(line: str) -> tuple[Command, str]:
    """Return the command of a line, and its argument. Raises InputUnusable when there is no such command."""
    name, _, words = line.removeprefix("/").partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise InputUnusable(f"no command /{name}: there are {', '.join(one.usage for one in COMMANDS.values())}")
    if name == "stream" and not words.strip():
        raise InputUnusable("/stream needs a path, such as self.stream.pressure.check; /stream self.stream lists them")
    if words.strip() and " " not in command.usage:
        raise InputUnusable(f"{command.usage} takes nothing after it")
    return command, words.strip()
