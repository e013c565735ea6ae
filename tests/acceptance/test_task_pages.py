"""The commands of the pages that people open in need run as they are written, over the log of the README's team."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.test_commands import blocks, inline, problem_of
from tests.support.apc_command import ApcCommand

from .test_readme import BLOCKS, ROOT

pytestmark = pytest.mark.long

PAGES = ("see-and-search", "stuck", "on-call", "auditor")
STANDS = ("apc tail", "apc ui", "apc up", "apc doctor", "apc serve")
"""They go on until they are stopped, or look at what does not run here."""
ACTS = (
    "approval approve",
    "session pause",
    "session resume",
    "session stop",
    "dead-letter requeue",
    "effect settle",
    "issue acknowledge",
)
"""Acts on a running system: tests/client/acts and tests/integration run them."""
ELSEWHERE = (
    "apc topology apply",
    "apc log verify --checkpoints",
    "apc log erase",
    "apc agent move",
    "apc dead-letter show",
    "apc packet replay --limit",
    "apc packet replay --run-id RUN --what-if",
)
"""They need a broker, another contract, or what this log does not have."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApcCommand, str, str]]:
    """The folder of a run, its session, and the packet of the refund."""
    apc = ApcCommand(tmp_path_factory.mktemp("task-pages"))
    for name, language in (("refunds.py", "python"), ("refunds.yml", "yaml")):
        (apc.folder / name).write_text(BLOCKS[language])
    (apc.folder / "complaint.json").write_text('{"order": "A-17", "euros": 120}')
    done = apc(*BLOCKS["bash"].splitlines()[1].split()[1:], stdin="y\n")
    assert done.returncode == 0, done.stderr
    session = json.loads(done.stdout)["session"]
    events = [json.loads(line) for line in apc("session", "events", session).stdout.splitlines()]
    (refund,) = [one["packet_id"] for one in events if one["type"] == "MESSAGE" and one["sender"] == "clerk"]
    yield apc, session, refund


def commands_of(page: str) -> list[str]:
    """Return the commands of a page that can run over a log at rest, each once, in their order."""
    text = (ROOT / f"docs/how-to/{page}.md").read_text(encoding="utf-8")
    found = dict.fromkeys([*blocks(text), *inline(text)])
    whole = [one for one in found if one.startswith("apc ") and problem_of(one, is_whole=True) is None]
    return [one for one in whole if not _is_left_out(one)]


def _is_left_out(command: str) -> bool:
    return command.startswith((*STANDS, *ELSEWHERE)) or any(act in command for act in ACTS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_page_run(page: str, folder: tuple[ApcCommand, str, str]) -> None:
    apc, session, refund = folder
    (apc.folder / "key.txt").write_text(apc("log", "key").stdout)
    values = {"SESSION": session, "RUN": session, "FILE": "refunds.yml", "ID": "clerk", "N": "3"}
    values |= {"PACKET": refund, "PACKET_ID": refund}
    refused = {}
    for command in commands_of(page):
        words = [values.get(word, word) for word in command.split()[1:]]
        done = apc(*words, stdin="y\n")
        if done.returncode != 0:
            refused[command] = f"exit {done.returncode}: {done.stderr[-300:]}"
    assert refused == {}


def test_the_pages_name_commands_enough() -> None:
    assert all(len(commands_of(page)) >= 3 for page in PAGES)
    assert Path(ROOT / "docs/how-to/auditor.md").read_text(encoding="utf-8").count("run.apc") >= 3
