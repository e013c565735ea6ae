"""What `apc demo` prints: the packets of its session as the log gets them, each below a line on what it means."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from apc_cli.commands.demo_stage import Killed
from apc_cli.output.safe_console import SafeConsole
from apc_client.session import SessionEvent
from apc_contracts.content import payload_line
from apc_contracts.payloads.by_type import DecisionPayload, MessagePayload, SignalPayload
from apc_contracts.text import numbered, one_line
from apc_contracts.vocabulary import PacketType

WIDEST = 120
"""Columns; longer lines are hard to read."""
INDENT, WORDS = 2, 19
"""Columns before a sentence, and before the words of a rule."""
MEANINGS = {
    "alert": "An alert comes in, and the scribe asks two investigators.",
    "finding": "Both report what they have found.",
    "refused": "The fixer acts, and cites nothing. The gate refuses that by a rule of the room, so nothing is done:",
    "question": "Now the fixer cites both findings. Its action is risky, so it asks a lead:",
    "answer": "The answer is a packet of the log, too.",
    "action": "The gate accepts exactly the action that was approved.",
    "outcome": "Its handler ran again, found the recorded result, and did not repeat the rollback.",
    "report": "The scribe closes the session with its postmortem.",
}
_AFTER_DENIAL = "Without an approval the fixer does nothing."


def kind_of(event: SessionEvent) -> str | None:
    """Return which part of the story a packet is; None for what is not told, such as receipts."""
    payload = None if event.packet is None else event.packet.payload
    match payload:
        case MessagePayload():
            name = payload.schema_id.partition("/")[0]
            is_refused = event.verdict == "refused"
            return ("refused" if is_refused else name) if name in MEANINGS else None
        case SignalPayload(question=question, answer=answer) if event.packet_type == PacketType.SIGNAL:
            return "question" if question is not None else "answer" if answer is not None else None
        case DecisionPayload(result=result) if result is not None:
            return "report"
        case _:
            return None


class Story:
    """Prints to the terminal; what agents say cannot act on it."""

    def __init__(self) -> None:
        self._console = SafeConsole(highlight=False)
        self._console.width = min(self._console.width, WIDEST)
        self._began = time.monotonic()
        self._told = set[str]()
        self._is_denied = False

    def begin(self, data: Path, *, over_rabbit: bool) -> None:
        """Say what is going to happen, and what it leaves out."""
        self.head("apc demo: an incident room of four agents, under rules that the gate holds.")
        if over_rabbit:
            self.say("Over RabbitMQ: a process for each agent, the gate and the log's writer.")
        else:
            self.say(
                "Gate, bus, log writer and agents share one process here, beside a PostgreSQL: the kill below ends all "
                "of them. With --rabbitmq each is a process, and one of them is killed."
            )
        self.say("The agents are plain code, so no model is asked.")
        self.say(f"Data: {data}")

    def head(self, sentence: str) -> None:
        """Print what comes next."""
        self._console.print()
        self._print(0, Text(sentence, style="bold"))

    def say(self, sentence: str, style: str = "") -> None:
        """Print a sentence below."""
        self._print(INDENT, Text(one_line(sentence), style=style))

    def say_whole(self, words: str, style: str = "") -> None:
        """Print what is copied from the terminal, in one line however long it is."""
        self._console.print(Text(f"{' ' * INDENT}{one_line(words)}", style=style), soft_wrap=True)

    def show(self, event: SessionEvent) -> None:
        """Print a packet that belongs to the story, with its verdict."""
        kind = kind_of(event)
        if kind is None:
            return
        if kind not in self._told:
            self._told.add(kind)
            self.head(_AFTER_DENIAL if kind == "outcome" and "action" not in self._told else MEANINGS[kind])
        self._row(event.verdict, _line(event))
        for sentence in _refusal(event):
            self._print(WORDS, Text(one_line(sentence), style="red"))

    def show_kill(self, killed: Killed) -> None:
        """Print that a process was killed."""
        self.head("kill -9, right after the rollback was done and recorded:")
        self._row("killed", Text(f"{killed.place}; it is started again"))

    def show_postmortem(self, lines: Sequence[str]) -> None:
        """Print the result of the session, a line for each thing that happened."""
        for number, line in enumerate(lines, 1):
            self.say(f"{number}. {line}")

    def show_done(self, lines: Sequence[str], effects: Sequence[str]) -> None:
        """Print what was done outside the bus, and what the log has of it."""
        self.say(
            f"done.txt, outside the bus, has {numbered(len(lines), 'line')}: {'; '.join(lines) or 'nothing was done'}"
        )
        for words in effects:
            self.say(f"The log has this of it: {words}")

    def show_checks(self, checks: Sequence[tuple[str, str]]) -> None:
        """Print commands and what they found."""
        for command, found in checks:
            self.say_whole(f"$ {command}", style="dim")
            self.say(found, style="green")

    def show_page(self, command: str, address: str) -> None:
        """Print how to open the page on the run."""
        self.head("See this run in a browser:")
        self.say_whole(f"$ {command}", style="dim")
        self.say_whole(address)

    def say_time(self) -> None:
        """Print how long it took."""
        self.head(f"Done in {time.monotonic() - self._began:.0f} s.")

    def _row(self, verdict: str, text: Text) -> None:
        elapsed = f"{time.monotonic() - self._began:.1f} s"
        first = Text(f"{elapsed:>7}  ", style="dim").append(
            f"{verdict:<10}", style=f"not dim {_STYLES.get(verdict, 'red')}"
        )
        self._print(len(first), text, first)

    def _print(self, width: int, text: Text, first: Text | None = None) -> None:
        """Print a text whose further lines begin where its first one does."""
        prefix = Text(" " * width) if first is None else first
        for line in text.wrap(self._console, self._console.width - width):
            line.rstrip()
            self._console.print(prefix + line)
            prefix = Text(" " * width)


_LONGEST = 400
"""Characters of what an agent says."""
_STYLES = {"accepted": "green", "held": "yellow"}


def _line(event: SessionEvent) -> Text:
    text = Text(f"{event.sender} → {', '.join(event.recipients) or '-'}  ", style="cyan")
    text.append(one_line(_gist(event)), style="default")
    return text


def _gist(event: SessionEvent) -> str:
    payload = None if event.packet is None else event.packet.payload
    match payload:
        case DecisionPayload(result=result) if result is not None:
            return result.schema_id
        case None:
            return ""
        case _:
            return payload_line(event.packet_type, payload, {}, width=_LONGEST)


def _refusal(event: SessionEvent) -> list[str]:
    """Return what the rule says, what it requires, and its remedy."""
    refusal = event.refusal
    if refusal is None:
        return []
    said = {"requires": refusal.get("requires"), "remedy": refusal.get("remedy")}
    return [f"{refusal['rule']}: {refusal['message']}", *(f"{name}: {text}" for name, text in said.items() if text)]
