"""The slash commands of a chat."""

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.markdown import Markdown
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from apc_cli.errors import InputUnusable
from apc_cli.output.files import StandardInput
from apc_cli.output.output import show
from apc_cli.output.safe_console import SafeConsole
from apc_cli.output.terminal import echo
from apc_contracts.text import numbered, printable, printable_json
from apc_minds.context import ArgumentInvalid
from apc_minds.llm import Dialogue, DialogueOutput, Props

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


# The terminal prompt of a chat: history, several lines, completion of the slash commands.

PROMPT = "> "


class Prompt:
    """Reads input in the event loop: Enter sends, Alt-Enter begins a new line, Tab completes.

    Args:
        messages: the conversation so far; the user's messages become the history.
    """

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        said = [printable(str(message["content"])) for message in messages if message["role"] == "user"]
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            history=InMemoryHistory(said),
            completer=_SlashCommands(),
            complete_while_typing=False,
            key_bindings=_bindings(),
        )

    async def read(self) -> str | None:
        """Return what was typed; None after Ctrl-D in an empty line. Raise KeyboardInterrupt on Ctrl-C."""
        try:
            return await self._session.prompt_async()
        except EOFError:
            return None


class _SlashCommands(Completer):
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Complete a command name at the beginning of the text."""
        typed = document.text_before_cursor
        if not typed.startswith("/"):
            return
        for name, command in COMMANDS.items():
            if f"/{name}".startswith(typed):
                yield Completion(f"/{name}", -len(typed), display=command.usage, display_meta=command.help)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


# The screen of a chat: Rich at a terminal, one JSON document per line when the output is piped.

BAR_WIDTH = 24
PRESSURED = 0.7
"""From this pressure on the bar is red."""


class Screen(Protocol):
    """The interface of a chat's input and output."""

    def begin(self, agent_id: str, session_id: str, props: Props, *, is_kept: bool) -> None:
        """Show the agent, the session and its state."""

    async def read(self) -> str | None:
        """Return the next line; None at the end of the input."""

    def thinking(self) -> AbstractContextManager[Any]:
        """Indicate that the agent is thinking."""

    def show_answer(self, line: str, output: DialogueOutput) -> None:
        """Show the agent's answer."""

    def show_result(self, line: str, result: Any, props: Props) -> None:
        """Show the result of a command."""

    def show_refusal(self, line: str, error: Exception) -> None:
        """Show why a line was refused."""

    def end(self, session_id: str, *, is_kept: bool) -> None:
        """Show how to resume the session."""


def make_screen() -> Screen:
    """Return a terminal screen when both ends are terminals, else a line screen."""
    return TerminalScreen() if sys.stdin.isatty() and sys.stdout.isatty() else LineScreen()


class LineScreen:
    """A screen for pipes: reads a line, writes a line of JSON."""

    def __init__(self) -> None:
        self._input = StandardInput()

    def begin(self, agent_id: str, session_id: str, props: Props, *, is_kept: bool) -> None:
        """Write the first line."""
        self._write({"agent": agent_id, "session": session_id, "is_kept": is_kept, **_measured(props)})

    async def read(self) -> str | None:
        """Read a line without a prompt."""
        return await self._input.read_line()

    def thinking(self) -> AbstractContextManager[Any]:
        """Do nothing."""
        return nullcontext()

    def show_answer(self, line: str, output: DialogueOutput) -> None:
        """Write one line."""
        tokens = output.exchange.usage.total_tokens
        self._write({"message": line, "response": output.response, "tokens": tokens, **_measured(output.props)})

    def show_result(self, line: str, result: Any, props: Props) -> None:
        """Write one line."""
        self._write({"command": line, "result": result, **_measured(props)})

    def show_refusal(self, line: str, error: Exception) -> None:
        """Write one line."""
        self._write({"refused": printable(line), "error": type(error).__name__, "why": printable(str(error))})

    def end(self, session_id: str, *, is_kept: bool) -> None:
        """Do nothing."""

    def _write(self, document: Mapping[str, Any]) -> None:
        echo(printable_json(orjson.dumps(document, default=str).decode()), flush=True)


class TerminalScreen:
    """A screen for people."""

    def __init__(self) -> None:
        self._console = SafeConsole(highlight=False)
        self._prompt = Prompt(())

    def begin(self, agent_id: str, session_id: str, props: Props, *, is_kept: bool) -> None:
        """Show agent, session and the messages so far."""
        messages = props.document["messages"]
        self._prompt = Prompt(messages)
        said = numbered(len(messages), "message")
        self._console.print(f"[bold]{escape(agent_id)}[/] · session {escape(session_id)} · {said} · /help")
        if not is_kept:
            self._console.print("[dim]no database: this conversation ends with the process[/]")
        self._show_pressure(props)

    async def read(self) -> str | None:
        """Read a line with a prompt."""
        return await self._prompt.read()

    def thinking(self) -> AbstractContextManager[Any]:
        """Return a spinner."""
        return self._console.status("thinking")

    def show_answer(self, line: str, output: DialogueOutput) -> None:
        """Show the answer, its cost and the pressure bar."""
        self._console.print(Markdown(output.response, hyperlinks=False))
        usage = output.exchange.usage
        cost = f" · ${output.exchange.cost:.4f}" if usage.cost is not None else ""
        self._console.print(f"[dim]{usage.total_tokens} tokens{cost}[/]", end="  ")
        self._show_pressure(output.props)

    def show_result(self, line: str, result: Any, props: Props) -> None:
        """Show a table, and the pressure bar."""
        rows = result if isinstance(result, Sequence) and not isinstance(result, str) else [result]
        if rows and all(isinstance(row, Mapping) for row in rows):
            table = Table(header_style="bold")
            for name in rows[0]:
                table.add_column(str(name), overflow="fold")
            for row in rows:
                table.add_row(*(escape(show(value)) for value in row.values()))
            self._console.print(table)
        elif not rows:
            self._console.print("nothing")
        self._show_pressure(props)

    def show_refusal(self, line: str, error: Exception) -> None:
        """Show one sentence."""
        self._console.print(f"[yellow]{escape(printable(str(error)))}[/]")

    def end(self, session_id: str, *, is_kept: bool) -> None:
        """Show the command that resumes the session."""
        if is_kept:
            self._console.print(f"[dim]come back with: apc chat --session {escape(session_id)}[/]")

    def _show_pressure(self, props: Props) -> None:
        pressure = props.document["pressure"]
        bar = ProgressBar(total=1.0, completed=pressure, width=BAR_WIDTH, complete_style=_colour(pressure))
        line = Table.grid(padding=(0, 1))
        line.add_row("pressure", bar, f"{pressure:.0%}", f"[dim]{props.document['status']}[/]")
        self._console.print(line)


def _colour(pressure: float) -> str:
    return "red" if pressure > PRESSURED else "green"


def _measured(props: Props) -> dict[str, Any]:
    return {"pressure": props.document["pressure"], "status": props.document["status"]}
