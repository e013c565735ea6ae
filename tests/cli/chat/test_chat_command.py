"""`apc chat` with the example agent: through a pipe, at a terminal, and again after a restart."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.apc_command import ApcCommand

EXAMPLE = Path(__file__).parents[3] / "examples" / "chat-agent"
PATIENCE = 60.0
PROMPT = "\x1b[?2004h"
"""A prompt begins with the wish for bracketed paste."""
ANSWERS_NOTHING = {"PROMPT_TOOLKIT_NO_CPR": "1"}
"""The terminal of these tests does not say where its cursor is."""


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("APC_")}
    return {
        **kept,
        "APC_DATA_DIR": str(tmp_path),
        "TERM": "xterm-256color",
        "COLUMNS": "120",
        **ANSWERS_NOTHING,
        **more,
    }


def chat(tmp_path: Path, lines: Sequence[str], *arguments: str, **given: str) -> list[dict[str, Any]]:
    """Return what the example agent answers to lines of a pipe."""
    ended = run_chat(tmp_path, lines, *arguments, **given)
    assert (ended.returncode, ended.stderr) == (0, "")
    return [json.loads(line) for line in ended.stdout.splitlines()]


def run_chat(tmp_path: Path, lines: Sequence[str], *arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    return ApcCommand(EXAMPLE)(
        "chat",
        *("--agent", "chat_agent:agent", *arguments),
        stdin="\n".join(lines),
        given={"APC_DATA_DIR": str(tmp_path), **given},
    )


@pytest.mark.long
def test_the_example_uses_tools_tasks_memory_and_compression(tmp_path: Path) -> None:
    lines = ["3 kg to Rome", "My name is Ada", "What is my name?", "2 kg to Paris", "the route to Oslo"]
    filling = ["Please keep this in mind for me: " + "grain and salt " * 30] * 12
    told = chat(tmp_path, [*lines, *filling, "/tasks", "/stream self.stream.project.stats"])
    answers = [one["response"] for one in told if "response" in one]
    assert answers[0] == "That is 37.5 euro."
    assert answers[1:3] == ["Nice to meet you, Ada.", "You are Ada."]
    assert "we do not deliver to Paris" in answers[3]
    task_id = re.search(r"task ([\w-]+)", answers[4])
    tasks, stats = told[-2]["result"], told[-1]["result"]
    assert task_id is not None and tasks[0]["task_id"] == task_id[1]
    assert (tasks[0]["status"], tasks[0]["result"]["legs"]) == ("SUCCEEDED", ["harbour", "pass", "Oslo"])
    assert stats["compression_count"] > 0
    assert all(one["pressure"] <= 0.7 for one in told)


def test_what_is_refused_is_said_and_the_conversation_goes_on(tmp_path: Path) -> None:
    refused = [
        "/fly",
        "/compress much",
        "/compress 7",
        "/clear",
        "/stream",
        "/stream self.nope",
        "/stream self.stream.focus.peek x",
        "/clear now",
        "/quit now",
        "a\0b",
    ]
    *told, answered = chat(tmp_path, [*refused, "x " * 20_000, "Hello"])
    assert [one.get("error") for one in told[1:]] == [
        "InputUnusable",
        "ArgumentInvalid",
        "InvalidTransition",
        "InvalidTransition",
        "InputUnusable",
        "UnknownPath",
        "ArgumentInvalid",
        "InputUnusable",
        "InputUnusable",
        "TurnInvalid",
        "MessageTooLong",
    ]
    assert answered["response"].startswith("Ask me for a price")


def test_bytes_that_are_no_text_are_refused_and_the_conversation_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "apc_cli", "chat", "--agent", "chat_agent:agent"]
    ended = subprocess.run(
        command,
        cwd=EXAMPLE,
        env=environment(tmp_path),
        input=b"\xff\xfe\n/\xff\nHello\n",
        capture_output=True,
        check=True,
    )
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [one.get("error") for one in told[1:]] == ["TurnInvalid", "InputUnusable", None]
    assert told[3]["response"].startswith("Ask me for a price")


def test_commands_show_and_change_the_context(tmp_path: Path) -> None:
    told = chat(tmp_path, ["Hello", "/history", "/compress 0.5", "/help", "/clear", "/history", "/quit", "never read"])
    history, compressed, helped, cleared, empty = (one["result"] for one in told[2:])
    assert [one["role"] for one in history] == ["user", "assistant"]
    assert compressed["after"] <= compressed["before"]
    assert {"/quit", "/tasks", "/clear"} <= {one["command"] for one in helped}
    assert cleared and empty == []


@pytest.mark.long
@pytest.mark.postgres
def test_a_session_resumes_for_its_owner_alone(tmp_path: Path, postgres_url: str) -> None:
    place = {"APC_DATABASE_URL": postgres_url}
    chat(tmp_path, ["My name is Ada", "the route to Oslo"], "--session", "s-1", **place)
    opened, answer, tasks, history = chat(
        tmp_path, ["What is my name?", "/tasks", "/history"], "--session", "s-1", **place
    )
    assert opened["is_kept"] and answer["response"] == "You are Ada."
    assert tasks["result"][0]["action"] == "plan_route"
    assert history["result"][0]["content"] == "My name is Ada"
    asked = ["/tasks", "/history", "What is my name?"]
    _, tasks, history, answer = chat(tmp_path, asked, "--session", "s-1", "--user", "bob", **place)
    assert tasks["result"] == history["result"] == [] and "Ada" not in answer["response"]


class Terminal:
    """A real terminal with `apc chat` in it."""

    def __init__(self, tmp_path: Path, *arguments: str, **given: str) -> None:
        self.end, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "apc_cli", "chat", "--agent", "chat_agent:agent", *arguments],
            cwd=EXAMPLE,
            env=environment(tmp_path, **given),
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)
        self.shown = ""

    def expect(self, text: str) -> None:
        """Wait until the screen shows a text that it has not shown before."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.end], [], [], left)[0], f"no {text!r} in {self.shown!r}"
            try:
                self.shown += os.read(self.end, 65_536).decode(errors="replace")
            except OSError:  # the terminal is closed
                break
        _, found, self.shown = self.shown.partition(text)
        assert found, f"the end without {text!r}"

    def type(self, line: str) -> None:
        os.write(self.end, f"{line}\n".encode())

    def ask(self, line: str, *answers: str) -> None:
        """Type a line, and wait for what it shows and for the next prompt."""
        self.type(line)
        for answer in (*answers, PROMPT):
            self.expect(answer)

    def close(self) -> int:
        """Its exit code. Reads meanwhile, as a terminal does: who writes more than it holds waits for it."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it goes on, with {self.shown!r}"
            if select.select([self.end], [], [], 0.05)[0]:
                try:
                    self.shown += os.read(self.end, 65_536).decode(errors="replace")
                except OSError:  # the terminal is closed
                    self.process.wait(PATIENCE)
        os.close(self.end)
        return self.process.returncode


@contextmanager
def talking(tmp_path: Path, *arguments: str, **given: str) -> Iterator[Terminal]:
    opened = Terminal(tmp_path, *arguments, **given)
    try:
        opened.expect("clerk-1")
        opened.expect(PROMPT)
        yield opened
    finally:
        if opened.process.poll() is None:
            opened.process.kill()
            opened.close()


@pytest.mark.postgres
def test_every_command_at_a_terminal_and_the_session_resumes(tmp_path: Path, postgres_url: str) -> None:
    place = {"APC_DATABASE_URL": postgres_url, "APC_LLM_MODEL": ""}
    with talking(tmp_path, "--session", "s-1", **place) as terminal:
        terminal.ask("My name is Ada", "Nice to meet you, Ada.", "pressure", "ready")
        terminal.ask("the route to Oslo", "I am planning it as task", "ready")
        terminal.ask("/tasks", "plan_route", "pressure")
        terminal.ask("/history", "My name is Ada", "plan_route", "pressure")
        terminal.ask("/compress 0.05", "before", "after", "compressed")
        terminal.ask("/compress 0.05", "before", "after", "compressed")
        terminal.ask("/compress lots", "is no number in 0..1")
        terminal.ask("/stream self.stream.pressure.check", "pressure")
        terminal.ask("/stream self.context.window.seek", "position")
        terminal.ask("/stream self.stream.linearity.tag resource_id=nobody", "nobody")
        terminal.ask("/stream self.stream.nowhere", "unknown path")
        terminal.ask("/stream", "needs a path")
        terminal.ask("/help", "/compress", "/quit")
        terminal.ask("/History", "no command /History")
        terminal.type("/quit")
        terminal.expect("come back with: apc chat --session s-1")
        assert terminal.close() == 0
    with talking(tmp_path, "--session", "s-1", **place) as terminal:
        terminal.ask("What is my name?", "You are Ada.")
        terminal.ask("/tasks", "SUCCEEDED")
        terminal.ask("/clear", "cleared")
        terminal.ask("/history", "nothing")
        terminal.ask("What is my name?", "You have not told me.")
        os.write(terminal.end, b"\x04")  # Ctrl-D: the end of the input
        assert terminal.close() == 0


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    if opened.process.poll() is None:
        opened.process.kill()
        opened.close()


def test_at_a_terminal_the_pressure_is_a_bar(terminal: Terminal) -> None:
    terminal.expect("clerk-1")
    terminal.expect("ends with the process")
    terminal.expect("pressure")
    terminal.expect(PROMPT)
    terminal.type("3 kg to Rome")
    terminal.expect("That is 37.5 euro.")
    terminal.expect("pressure")
    terminal.expect("━")
    terminal.expect("ready")
    terminal.expect(PROMPT)
    terminal.type("/history")
    terminal.expect("isPreserved")
    terminal.expect(PROMPT)
    terminal.type("/fly [bold]")
    terminal.expect("no command")
    terminal.expect(PROMPT)
    terminal.type("/quit")
    assert terminal.close() == 0


def test_several_lines_history_and_completion(terminal: Terminal) -> None:
    terminal.expect(PROMPT)
    os.write(terminal.end, b"Price, please:\x1b\r3 kg to Rome\r")  # Alt-Enter begins a line, Enter sends
    terminal.expect("That is 37.5 euro.")
    terminal.expect(PROMPT)
    os.write(terminal.end, b"/hist\t")
    terminal.expect("ory")  # what was added to what was typed
    os.write(terminal.end, b"\r")
    terminal.expect("isPreserved")
    terminal.expect(PROMPT)
    for typed, shown in ((b"x", "x"), (b"\x7f\x1b[A", "/history"), (b"\x1b[A", "please:")):
        os.write(terminal.end, typed)  # the line before the last one, again
        terminal.expect(shown)
    os.write(terminal.end, b"\r")
    terminal.expect("That is 37.5 euro.")
    terminal.expect(PROMPT)
    terminal.type("/quit")
    assert terminal.close() == 0


def test_ctrl_c_ends_it_at_once(terminal: Terminal) -> None:
    terminal.expect(PROMPT)
    os.write(terminal.end, b"half a line\x03")
    assert terminal.close() == 130, terminal.shown


@pytest.mark.long
@pytest.mark.parametrize("content", ["", "Hello", "Hello\r\n/quit\nnever read\n"])
def test_the_input_may_be_a_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "input").write_bytes(content.encode())
    with (tmp_path / "input").open("rb") as file:
        ended = subprocess.run(
            [sys.executable, "-m", "apc_cli", "chat", "--agent", "chat_agent:agent"],
            cwd=EXAMPLE,
            env=environment(tmp_path),
            stdin=file,
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
    said = [json.loads(line).get("message") for line in ended.stdout.splitlines()]
    assert said == ([None, "Hello"] if content else [None])


def test_an_interrupt_ends_it_at_once(terminal: Terminal) -> None:
    terminal.expect(PROMPT)
    terminal.process.send_signal(2)
    assert terminal.close() == 130, terminal.shown
