"""Commands over a log of which segments were released."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.apc_command import ApcCommand
from tests.support.log.archived import APPROVAL, full_log

from apc_cli.commands.log_archive import why_nothing
from apc_persister.ageing import Policy

pytestmark = [pytest.mark.postgres, pytest.mark.long]
SESSION = "session-of-run-0"
_OLDEST = "shard 0, entries 5 to 8"


@pytest.mark.parametrize(
    ("release_after", "said"),
    [
        (
            timedelta(days=7),
            f"{_OLDEST}, full since 2026-01-02 03:00 UTC, may be released from 2026-01-09 03:00 UTC on",
        ),
        (None, "APC_ARCHIVE_POLICY releases none"),
    ],
)
def test_nothing_to_do_says_until_when(release_after: timedelta | None, said: str) -> None:
    full = datetime(2026, 1, 2, 3, tzinfo=UTC)
    states = {"released": full, "recorded": full, "open": None}
    segments = [
        {"shard": 0, "first_seq": 1 + 4 * at, "last_seq": 4 + 4 * at, "state": state, "full_since": since}
        for at, (state, since) in enumerate(states.items())
    ]
    told = why_nothing(segments, Policy(release_after=release_after))
    assert told == f"no segment is full, or old enough (1 released, 1 recorded, 1 open): {said}"


async def test_commands_go_on_in_the_archive_or_say_which_segment_is_missing(postgres_url: str, tmp_path: Path) -> None:
    async with full_log(postgres_url, tmp_path) as log:
        await log.release()
    apc = ApcCommand(tmp_path)
    without = {"APC_DATABASE_URL": postgres_url, "APC_LOG_KEY": os.environ["APC_LOG_KEY"]}
    given = without | {"APC_ARCHIVE_URL": str(log.archive.location)}
    for command in (
        ("packet", "trace", "--session-id", SESSION, "--json"),
        ("packet", "trace", "--packet-id", str(APPROVAL), "--json"),
        ("packet", "replay", "--run-id", "run-0", "--json"),
        ("packet", "tree", str(APPROVAL), "--json"),
        ("packet", "impact", str(APPROVAL), "--json"),
        ("log", "prove", str(APPROVAL)),
        ("log", "prove", "0/70000"),
        ("log", "export", "--run-id", "run-0"),
    ):
        refused = apc(*command, given=without)
        done = apc(*command, given=given)
        assert (refused.returncode != 0, refused.stdout) == (True, ""), command
        place = log.places["0/70000" in command]
        assert f"ARCHIVE_UNAVAILABLE: {place}: it was released from the database" in refused.stderr, command
        assert done.returncode == 0, done.stderr
        text = done.stdout.splitlines()[0] if command[1] == "export" else done.stdout
        assert isinstance(json.loads(text), dict | list), command
    for option, name in (("--session", SESSION), ("--run", "run-misspelt")):
        held = apc("log", "hold", "add", option, name, "--reason", "a dispute that goes on", given=without)
        assert held.returncode == 0, held.stderr
        assert (f"no run {name!r} yet" in held.stderr) is (option == "--run")
    segments = json.loads(apc("log", "segments", "--json", given=without).stdout)
    assert [(one["state"], one["holds"]) for one in segments] == [("released", 1), ("released", 1), ("open", 0)]
    nothing = apc("log", "archive", "--once", given=given)
    assert nothing.stdout.startswith("no segment is full, or old enough (2 released, 1 open): shard 0, entries 131073")
    assert nothing.stdout.strip().endswith("is the next to be full")
    _, listed = apc.at_terminal("log", "hold", "list", columns=80, given=without)
    assert all(word in listed for word in (SESSION, "run run-misspelt", "a dispute")), listed
