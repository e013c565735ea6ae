"""The screen of a chat: Rich at a terminal, one JSON document per line when the output is piped."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import orjson
from rich.markdown import Markdown
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from apc_agents.llm import DialogueOutput, Props
from apc_console.chat.terminal_prompt import Prompt
from apc_console.output.cells import show
from apc_console.output.safe_console import SafeConsole
from apc_console.output.standard_input import StandardInput
from apc_console.output.terminal import echo
from apc_contracts.text import numbered, printable, printable_json

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
