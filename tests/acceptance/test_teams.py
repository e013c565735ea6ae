"""The pull-request review of examples/: a team on one input, in one process and over RabbitMQ, by its README."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.apc_command import NONE, ApcCommand, Settings

from apc_contracts.contract.contract import task_contract

EXAMPLE = Path(__file__).parents[2] / "examples/pull-request-review"
TEAM = "review:team"
FOREIGN = '{"number": 4711, "diff": "+ password = 1"}'


@pytest.fixture
def review(apc: ApcCommand) -> ApcCommand:
    """The example, in the working folder."""
    for name in ("review.py", "review.yml"):
        shutil.copy(EXAMPLE / name, apc.folder / name)
    (apc.folder / "pr.json").write_text(FOREIGN)
    return apc


def _run(apc: ApcCommand, *options: str, given: Settings = NONE) -> dict[str, Any]:
    done = apc("run", TEAM, "--input", "pr.json", *options, given=given)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_in_one_process(review: ApcCommand) -> None:
    first = _run(review, "--key", "pr-4711")
    assert first["result"]["schema"] == "review/1"
    content = first["result"]["content"]
    assert (content["number"], content["merge"]) == (4711, False)
    assert sorted(one["reader"] for one in content["opinions"]) == ["security", "style"]
    assert _run(review, "--key", "pr-4711") == first, "the session of the key, also after a restart"
    letters = json.loads(review("dead-letter", "list", "--json").stdout)
    assert not letters, "nothing is delivered to the client of a run, which has no inbox"


@pytest.mark.long
def test_over_rabbitmq_each_agent_is_a_process(review: ApcCommand, amqp_vhost_url: str, postgres_url: str) -> None:
    (folder := review.folder / "contracts").mkdir()
    (folder / "own.json").write_text(json.dumps(json.loads(task_contract().body) | {"name": "own"}))
    given = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url, "APC_CONTRACTS": str(folder)}
    for runs in (1, 2):
        done = _run(review, "--key", "pr-4711", given=given)
        assert done["result"]["content"]["merge"] is False
        agents = json.loads(review("agent", "list", "--json", given=given).stdout)
        clients = {one["agent_id"]: one["is_revoked"] for one in agents if one["agent_id"].startswith("client-")}
        assert len(clients) == runs, "each run has its own"
        assert all(clients.values()), "its right ends with the command"
        session = json.loads(review("session", "show", done["session"], given=given).stdout)["session"]
        assert session["opener"] in clients, "the second run finds the session of the first"
    registered = json.loads(review("contract", "list", "--json", given=given).stdout)
    assert {(one["contract"], one["revision"]) for one in registered} == {("own", 1), ("pull-request-review", 1)}


@pytest.mark.faults
def test_an_agent_that_is_killed_in_mid_run_goes_on(review: ApcCommand, amqp_vhost_url: str, postgres_url: str) -> None:
    """The first call of the reader's handler kills its process, with kill -9."""
    file, killed = review.folder / "review.py", review.folder / "killed"
    text = file.read_text()
    line = '    found = "password" in request.diff\n'
    assert line in text
    head = f"import os\nfrom pathlib import Path\nKILLED = Path({str(killed)!r})\n"
    dies = "    if not KILLED.exists():\n        KILLED.touch()\n        os.kill(os.getpid(), 9)\n"
    file.write_text(head + text.replace(line, dies + line))
    given = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}

    done = _run(review, given=given)

    assert killed.exists()
    assert [one["reader"] for one in done["result"]["content"]["opinions"]].count("security") == 1
    shown = review("packet", "trace", "--session-id", done["session"], "--type", "MESSAGE", "--json", given=given)
    found = json.loads(shown.stdout)
    opinions = [one for one in found if one["sender_agent_id"] == "security"]
    assert len(opinions) == 1


@pytest.mark.parametrize(
    ("arguments", "body", "said"),
    [
        (["review:teem"], FOREIGN, "module review has no 'teem'; it has lead, security, style, team"),
        (["review:lead"], FOREIGN, "review:lead is of type Agent, not an apc_agents.Team"),
        (["reviews:team"], FOREIGN, "no module 'reviews'"),
        ([TEAM], "{", "the input pr.json is no JSON"),
        ([TEAM], '{"number": "x", "diff": ""}', "is no PullRequest: number: Input should be a valid integer"),
        ([TEAM], "[]", "the input pr.json is no PullRequest: $: Input should be"),
        ([TEAM, "--input", "nowhere.json"], FOREIGN, "cannot read nowhere.json: No such file or directory"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(review: ApcCommand, arguments: list[str], body: str, said: str) -> None:
    (review.folder / "pr.json").write_text(body)
    done = review("run", "--input", "pr.json", *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line
    assert not (review.folder / ".apc").exists(), "refused before anything starts"


@pytest.mark.long
def test_a_handler_that_fails_permanently_ends_it_with_3(review: ApcCommand) -> None:
    text = (review.folder / "review.py").read_text()
    (review.folder / "review.py").write_text(text.replace('found = "password" in request.diff', "raise ValueError"))
    done = review("run", TEAM, "--input", "pr.json")
    assert done.returncode == 3, done.stderr
    assert "halted: HANDLER_FAILED" in done.stderr.splitlines()[-1]
