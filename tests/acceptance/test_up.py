"""`apc up`: everything around an agent, in one process or supervised."""

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.apc_command import NONE, ApcCommand, Settings

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples/reviewer.py"
SHOP = """
from datetime import timedelta

from pydantic import BaseModel

from apc_agents import Agent, HandlerContext, Role, Team, message


@message("order/1")
class Order(BaseModel):
    amount: int


@message("receipt/1")
class Receipt(BaseModel):
    by: str


cashier = Agent("cashier", role="cashier", swarm="shop")


@cashier.on(Order)
async def pay(order: Order, ctx: HandlerContext) -> None:
    approval = await ctx.ask(f"Pay {order.amount}?", to=Role("manager"), timeout=timedelta(hours=1))
    await ctx.complete(Receipt(by=approval.by))


team = Team("shop", agents=[cashier], entry="cashier")
"""


@pytest.fixture
def reviewer(apc: ApcCommand) -> str:
    """The reviewer of examples/, in the working folder."""
    shutil.copy(EXAMPLE, apc.folder / "reviewer.py")
    return "reviewer:agent"


@contextmanager
def up(apc: ApcCommand, *arguments: str, given: Settings = NONE) -> Iterator[subprocess.Popen[str]]:
    """A system that is ready; killed at the end if the test has not ended it."""
    running = apc.start("up", *arguments, given=given)
    try:
        wait_for(running, "ready after")
        yield running
    finally:
        children = psutil.Process(running.pid).children() if running.poll() is None else []
        running.kill()
        for child in children:
            child.kill()
        running.communicate()


def wait_for(running: subprocess.Popen[str], text: str) -> str:
    """Return the first line on stderr that holds this text."""
    assert running.stderr is not None
    seen = []
    for line in running.stderr:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError("".join(seen[-20:]))


def end(running: subprocess.Popen[str]) -> str:
    """SIGTERM, and what it still said; it must end well."""
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 0, said
    return said


def listed(apc: ApcCommand, given: Settings = NONE) -> dict[str, dict[str, Any]]:
    """`apc agent list`, by id."""
    shown = apc("agent", "list", given=given)
    assert shown.returncode == 0, shown.stderr
    return {row["agent_id"]: row for row in json.loads(shown.stdout)}


def test_in_one_process_it_registers_its_agents_and_drains(apc: ApcCommand, reviewer: str) -> None:
    key_id = apc("key", "new", "reviewer-1", "--file", "reviewer-1.pem").stdout.partition("=")[0]
    with up(apc, "--agent", reviewer, given={"APC_AGENT_KEY_FILE": "{agent_id}.pem"}) as running:
        agents = listed(apc)

        said = end(running)

    row = agents["reviewer-1"]
    assert (row["handles"], row["keys"], row["rights"]) == (["IDEA"], [key_id], [])
    assert (row["open"], row["waiting"]) == (0, None), "nobody outside sees the queues of a bus in process"
    assert "draining" in said
    assert "Traceback" not in said
    assert listed(apc).keys() == agents.keys()


def test_a_killed_system_starts_again_on_its_folder(apc: ApcCommand, reviewer: str) -> None:
    with up(apc, "--agent", reviewer) as running:
        running.kill()
        running.communicate()

    with up(apc, "--agent", reviewer) as running:
        end(running)


def check_refused(second: subprocess.CompletedProcess[str], folder: str, running: subprocess.Popen[str]) -> None:
    """The folder and the other process are named, in the last line."""
    assert second.returncode == 2
    said = second.stderr.splitlines()[-1]
    assert said.startswith(f"apc: another system uses {folder}, process {running.pid} ("), second.stderr


def test_two_systems_do_not_share_a_folder(apc: ApcCommand) -> None:
    with up(apc) as running:
        check_refused(apc("up"), ".apc", running)
        end(running)


def test_two_systems_over_rabbitmq_do_not_share_a_folder(
    apc: ApcCommand, amqp_vhost_url: str, postgres_url: str
) -> None:
    given = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}
    with up(apc, given=given) as running:
        check_refused(apc("up", given=given), ".apc", running)
        end(running)


def test_over_rabbitmq_every_service_is_a_process(
    apc: ApcCommand, reviewer: str, amqp_vhost_url: str, postgres_url: str
) -> None:
    given = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}
    with up(apc, "--agent", reviewer, given=given) as running:
        commands = [" ".join(child.cmdline()) for child in psutil.Process(running.pid).children()]
        assert len(commands) == 3
        row = listed(apc, given)["reviewer-1"]
        assert (row["is_revoked"], row["waiting"], row["open"]) == (False, 0, 0)

        end(running)

    assert not psutil.pid_exists(running.pid)


def test_an_operator_adds_changes_and_revokes(apc: ApcCommand, amqp_vhost_url: str, postgres_url: str) -> None:
    given = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}
    with up(apc, given=given) as running:
        first = apc(
            "agent", "add", "planner-1", "--role", "planner", "--swarm", "alpha",
            "--handles", "IDEA,EVAL", "--rights", "veto", given=given,
        )  # fmt: skip
        assert first.returncode == 0, first.stderr
        added = listed(apc, given)["planner-1"]
        assert (added["role"], added["rights"], added["waiting"]) == ("planner", ["veto"], 0)
        assert set(added["handles"]) == {"IDEA", "EVAL"}

        second = apc("agent", "add", "planner-1", "--role", "thinker", "--swarm", "alpha", given=given)
        assert second.returncode == 0, second.stderr
        assert listed(apc, given)["planner-1"]["role"] == "thinker"

        assert apc("agent", "revoke", "planner-1", given=given).returncode == 0
        assert listed(apc, given)["planner-1"]["is_revoked"] is True
        again = apc("agent", "revoke", "planner-1", given=given)
        assert again.returncode == 0 and "agent planner-1 was revoked before" in again.stderr, "repeating does no harm"
        nobody = apc("agent", "revoke", "nobody", given=given)
        assert (nobody.returncode, nobody.stderr) == (2, "apc: agent nobody is not registered\n")

        shown = json.loads(apc("topology", "show", given=given).stdout)
        assert not [row for row in shown if "planner" in row["queue"]]
        end(running)


def test_agents_are_registered_as_their_code_describes_them(
    apc: ApcCommand, reviewer: str, amqp_vhost_url: str, postgres_url: str
) -> None:
    given = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}
    with up(apc, given=given) as running:
        registered = apc("agent", "add", reviewer, given=given)

        assert (registered.returncode, registered.stdout) == (0, "agent reviewer-1 is registered\n")
        agent = listed(apc, given)["reviewer-1"]
        assert (agent["role"], agent["swarm"], agent["handles"], agent["waiting"]) == (
            "reviewer", "review", ["IDEA"], 0,
        )  # fmt: skip

        key_id = apc("key", "new", "reviewer-1").stdout.partition("=")[0]
        assert apc("key", "register", "reviewer-1", given=given).returncode == 0
        assert apc("agent", "add", reviewer, given=given).returncode == 0
        assert listed(apc, given)["reviewer-1"]["keys"] == [key_id], "code says nothing of keys: they stay"
        end(running)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--rights", "rule"), "--rights"),
        (("--handles", "NOVEL"), "--handles"),
        (("--key", "nokey"), "--key"),
        (("--key", "k=short"), "public_keys"),
    ],
)
def test_a_form_that_cannot_be_used_is_one_line(apc: ApcCommand, options: tuple[str, ...], says: str) -> None:
    refused = apc(
        "agent", "add", "a", "--role", "r", "--swarm", "s", *options, given={"APC_AMQP_URL": "amqp://127.0.0.1:9/"}
    )

    assert refused.returncode == 2
    assert says in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_without_services_a_change_waits_and_says_so(apc: ApcCommand, amqp_vhost_url: str, postgres_url: str) -> None:
    given = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}
    assert apc("topology", "apply", given=given).returncode == 0

    refused = apc("agent", "add", "a", "--role", "r", "--swarm", "s", given=given)

    assert refused.returncode == 2
    assert "takes effect as soon as they do" in refused.stderr
    with up(apc, given=given) as running:
        assert "a" in listed(apc, given)
        end(running)


def look_first(apc: ApcCommand, asked: str) -> None:
    """An approval shows what it lets the asker do; neither a script nor what was typed before approves it unseen."""
    piped = apc("approval", "approve", asked, stdin="y\n")
    assert (piped.returncode, "give --yes" in piped.stderr) == (2, True)
    typed = [("", "y\n"), ("[y/N]: ", "n\n")]
    code, shown = apc.at_terminal("approval", "approve", asked[-12:], typed=typed)
    assert code == 130
    assert shown.splitlines()[1:3] == ["cashier asks bob: Pay 700?", "Approve this? [y/N]: n"]
    for columns in (40, 80, 120):
        _, shown = apc.at_terminal("approval", "list", columns=columns, given={"NO_COLOR": "1"})
        lines = shown.splitlines()
        assert [line for line in lines if asked[-12:] in line and "Pay 700?" in line]
        assert [line for line in lines if len(line) > columns or line != line.rstrip()] == []
    alone, (listed,) = (json.loads(apc("approval", *line).stdout) for line in (("show", asked[-12:]), ("list",)))
    assert alone == listed, "one shape"


def test_people_act_and_answer_beside_a_system_and_a_run(apc: ApcCommand) -> None:
    """Who is named once stays registered: `apc run` then says that a question waits for somebody elsewhere."""
    with up(apc, "--person", "alice:operator", "--person", "bob:manager") as running:
        rights = {name: row["rights"] for name, row in listed(apc).items()}
        assert (rights["alice"], rights["bob"]) == (["operate"], [])
        end(running)
    (apc.folder / "shop.py").write_text(SHOP)
    (apc.folder / "order.json").write_text('{"amount": 700}')
    running = apc.start("run", "shop:team", "--input", "order.json")
    line = wait_for(running, "apc approval")
    asked = re.fullmatch(
        r"cashier asks bob: Pay 700\? It waits until [-0-9]+ [0-9:]+ UTC: "
        r"`apc approval approve ([-0-9a-f]+)`, or deny, in another terminal\n",
        line,
    )
    assert asked is not None, line
    look_first(apc, asked[1])
    approved = apc("approval", "approve", asked[1], "--yes")
    result, said = running.communicate(timeout=60)
    assert (approved.returncode, running.returncode) == (0, 0), approved.stderr + said
    assert json.loads(result)["result"]["content"] == {"by": "bob"}
    assert "Pay 700" not in said, "a question is said once"


def test_what_was_typed_before_a_question_is_no_answer_to_it(apc: ApcCommand) -> None:
    (apc.folder / "shop.py").write_text(SHOP)
    (apc.folder / "order.json").write_text('{"amount": 700}')
    typed = [("", "y too early\n"), ("a note if you like", "n not now\n")]
    code, shown = apc.at_terminal("run", "shop:team", "--input", "order.json", "--person", "bob:manager", typed=typed)
    assert code == 0, shown
    session = re.search(r'"session": "([^"]+)"', shown)
    assert session is not None, shown
    events = [json.loads(line) for line in apc("session", "events", session[1]).stdout.splitlines()]
    assert [one["content"] for one in events if one["sender"] == "bob"] == [{"outcome": "denied", "note": "not now"}]


@pytest.mark.parametrize(
    ("given", "broker", "said"),
    [
        ("alice", "", "'alice': write NAME:ROLE, each name once"),
        ("alice:operator", "amqp://127.0.0.1:1/", "--person goes without a broker: `apc agent add NAME --person"),
    ],
)
def test_people_that_cannot_be_used_are_refused_before_anything_starts(
    apc: ApcCommand, given: str, broker: str, said: str
) -> None:
    done = apc("up", "--person", given, given={"APC_AMQP_URL": broker, "APC_DATABASE_URL": "postgres://127.0.0.1:1/x"})
    assert done.returncode == 2
    assert said in done.stderr
    assert not (apc.folder / ".apc").exists()
