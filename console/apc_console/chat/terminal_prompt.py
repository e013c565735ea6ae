"""The terminal prompt of a chat: history, several lines, completion of the slash commands."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from apc_console.chat.commands import COMMANDS
from apc_contracts.text import printable

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
