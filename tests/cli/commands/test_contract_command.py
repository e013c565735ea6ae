"""`apc contract walk|diagram|check`."""

import json
from importlib.resources import files

import pytest
from pydantic import SecretStr
from tests.support.apc_command import ApcCommand

from apc_bus.settings import BusSettings, DatabaseSettings
from apc_cli.commands.contract import explained, find_contract
from apc_client.in_process import run_embedded
from apc_contracts.contract.contract import task_contract
from apc_contracts.errors import ContractInvalid

INTER = "inter_agent_coordination"
OPENING = ("research_briefs_dispatched", "all_swarms_ready")


def test_walk_prints_a_state_a_line(apc: ApcCommand) -> None:
    walked = apc("contract", "walk", INTER, *OPENING)

    assert walked.returncode == 0
    assert walked.stdout.splitlines() == ["SESSION_OPEN", "DIFFERENTIATED_RESEARCH", "INDEPENDENT_DISCOVERY"]


def test_walk_reads_the_facts(apc: ApcCommand) -> None:
    walked = apc("contract", "walk", INTER, *OPENING, "generation_window_open", "--facts", '{"generation": 11}')

    assert walked.returncode == 0
    assert walked.stdout.splitlines()[-1] == "SELECTIVE_TRANSFER"


@pytest.mark.parametrize(
    ("events", "facts", "says"),
    [
        ((*OPENING, "generation_window_open"), '{"generation": 10}', "guard"),
        ((*OPENING, "generation_window_open"), "{}", "guard"),
        (("all_swarms_ready",), "{}", "illegal"),
        (("no_such_event",), "{}", "no event"),
    ],
)
def test_walk_stops_at_what_cannot_be_taken(apc: ApcCommand, events: tuple[str, ...], facts: str, says: str) -> None:
    walked = apc("contract", "walk", INTER, *events, "--facts", facts)

    assert walked.returncode == 2
    assert walked.stdout.splitlines()[0] == "SESSION_OPEN"
    assert says in walked.stderr
    assert len(walked.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("walk", "no_such_machine", "emit"),
        ("walk", INTER, "x", "--facts", "{"),
        ("walk", INTER, "x", "--facts", "[1]"),
        ("walk",),
        ("diagram", "no_such_machine"),
        ("check", "no_such_file.json"),
    ],
)
def test_bad_input_is_one_line(apc: ApcCommand, arguments: tuple[str, ...]) -> None:
    refused = apc("contract", *arguments)

    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "Traceback" not in refused.stderr


def test_diagram_is_mermaid(apc: ApcCommand) -> None:
    drawn = apc("contract", "diagram", INTER)

    assert drawn.returncode == 0
    assert drawn.stdout.startswith("stateDiagram-v2\n")
    assert "[*] --> SESSION_OPEN" in drawn.stdout


def test_check_accepts_the_packaged_contract(apc: ApcCommand) -> None:
    path = files("apc_contracts") / "data/apc-1.0.json"

    checked = apc("contract", "check", str(path))

    assert checked.returncode == 0
    assert "usable contract" in checked.stdout


def test_check_names_the_place_of_a_hole(apc: ApcCommand) -> None:
    contract = json.loads((files("apc_contracts") / "data/apc-1.0.json").read_text())
    contract["machines"][INTER]["edges"][2]["guard"] = "no_such_fact > 1.0"
    (apc.folder / "mine.json").write_text(json.dumps(contract))

    checked = apc("contract", "check", "mine.json")

    assert checked.returncode == 2
    assert f"machines.{INTER}.edges[2]" in checked.stderr
    assert len(checked.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "place", "says"),
    [
        ("no_exit", f"machines.{INTER}.edges", "no exit"),
        ("no_way_out", f"machines.{INTER}.states[2]", "REVIEW"),
        ("dead_end", "machines.packet_lifecycle.states[8]", "nobody can leave PROMOTED"),
        ("event", f"machines.{INTER}.edges[0].event", "no event work_begun"),
        ("metric", "promotion_gate[0].metric", "unknown metric 'beauty'"),
    ],
)
def test_check_explains_each_mistake(apc: ApcCommand, source: str, place: str, says: str) -> None:
    packaged = "apc-1.0" if source == "metric" else "task-1.1"
    contract = json.loads((files("apc_contracts") / f"data/{packaged}.json").read_text())
    edges = contract["machines"][INTER]["edges"]
    if source == "no_exit":
        edges[:] = [edge for edge in edges if edge["to"] != "CLOSED"]
    elif source == "no_way_out":
        edges[:] = [edge for edge in edges if edge["from"] != ["REVIEW"]]
    elif source == "dead_end":
        lifecycle = contract["machines"]["packet_lifecycle"]
        lifecycle["edges"] = [edge for edge in lifecycle["edges"] if edge["from"] != ["PROMOTED"]]
    elif source == "event":
        edges[0]["event"] = "work_begun"
    else:
        contract["promotion_gate"][0]["metric"] = "beauty"
    (apc.folder / "mine.json").write_text(json.dumps(contract))

    checked = apc("contract", "check", "mine.json")

    assert checked.returncode == 2
    assert f"at {place}: " in checked.stderr.replace("mine.json: ", "")
    assert says in checked.stderr
    assert len(checked.stderr.splitlines()) == 1


def test_a_team_in_the_place_of_a_file_is_told_how_it_is_given(apc: ApcCommand) -> None:
    tested = apc("contract", "test", "refunds:team")

    assert tested.returncode == 2
    assert "give the file of the rules, such as refunds.yml, and the team with --team refunds:team" in tested.stderr


@pytest.mark.long
def test_new_writes_what_check_accepts_and_explain_explains(apc: ApcCommand) -> None:
    assert apc("contract", "new", "review", "--from", "task").returncode == 0
    written = (apc.folder / "review.json").read_bytes()

    assert apc("contract", "check", "review.json").returncode == 0
    explained = apc("contract", "explain", "review.json")
    again = apc("contract", "new", "review", "--from", "task")

    assert explained.returncode == 0
    assert (
        "REVIEW to WORKING: review_failed: a reviewer sends VETO, or the DONE is retracted; only if round < max_rounds."
        in (explained.stdout)
    )
    assert json.loads(written)["comments"]
    assert again.returncode == 2
    assert (apc.folder / "review.json").read_bytes() == written


def test_explain_says_what_moves_research(apc: ApcCommand) -> None:
    by_name = {name: apc("contract", "explain", name) for name in ("task", "nothing_of_the_kind")}
    research = apc("contract", "explain", str(files("apc_contracts") / "data/apc-1.0.json"))

    assert by_name["task"].returncode == research.returncode == 0
    assert "VALIDATION to PROMOTION: validation_pass" in research.stdout
    assert by_name["nothing_of_the_kind"].returncode == 2
    assert "there are: " in by_name["nothing_of_the_kind"].stderr


@pytest.mark.long
def test_a_fact_that_the_file_does_not_declare(apc: ApcCommand) -> None:
    """The error says where its entry comes from; with the entry the check is usable, and explained."""
    apc("contract", "new", "mine", "--from", "task")
    apc("contract", "new", "all", "--from", "apc-1.0")
    file = apc.folder / "mine.json"
    contract = json.loads(file.read_text())
    check = {"name": "claims_have_evidence", "mode": "enforce", "guard": "has_evidence", "path": "proof_bundle"}
    contract["drift_checks"].append(check)
    file.write_text(json.dumps(contract))
    refused = apc("contract", "check", "mine.json")
    entries = {one["name"]: one for one in json.loads((apc.folder / "all.json").read_text())["facts"]}
    contract["facts"].append(entries["has_evidence"])
    file.write_text(json.dumps(contract))

    assert refused.returncode == 2
    assert "copy its entry into `facts` from the file that `apc contract new NAME --from apc-1.0`" in refused.stderr
    assert apc("contract", "check", "mine.json").returncode == 0
    explained = apc("contract", "explain", "mine.json").stdout
    assert "claims_have_evidence, at proof_bundle: has_evidence; else refused with DRIFT_CHECK_FAILED" in explained


def test_explain_says_where_registered_contracts_are(apc: ApcCommand) -> None:
    missed = apc("contract", "explain", "publishing")

    assert missed.returncode == 2
    assert "Registered ones are in the log: " in missed.stderr


async def test_explain_finds_a_registered_contract(
    apc: ApcCommand, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = apc.folder / "contracts"
    folder.mkdir()
    document = json.loads(task_contract().body) | {"name": "publishing"}
    (folder / "publishing.json").write_text(json.dumps(document))
    database = DatabaseSettings(database_url=SecretStr(postgres_url))
    async with run_embedded(BusSettings(amqp_url=None, data_dir=apc.folder, contracts=str(folder)), database):
        pass  # it registers the folder
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)

    assert "publishing: sessions of the coordinator task" in next(explained(await find_contract("publishing")))
    with pytest.raises(ContractInvalid, match=r"there are: apc-1\.0, publishing, task"):
        await find_contract("nothing_of_the_kind")


@pytest.mark.parametrize("name", ["../outside", ".hidden", "a/b", "", "n" * 65])
def test_new_stays_in_its_folder(apc: ApcCommand, name: str) -> None:
    refused = apc("contract", "new", name)

    assert refused.returncode == 2
    assert not list(apc.folder.glob("**/*.json"))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["approvals", "investigation", "spending", "plain"])
def test_new_rules_of_each_kind_pass_their_tests(apc: ApcCommand, kind: str) -> None:
    made = apc("contract", "new", "mine", "--kind", kind)
    tested, checked = apc("contract", "test", "mine.yml"), apc("contract", "check", "mine.yml")

    assert (made.returncode, made.stdout) == (0, "mine.yml: change it, then: apc contract test mine.yml\n")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert all(line.startswith("ok ") for line in tested.stdout.splitlines())
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "2 rules, " in checked.stdout
    assert "no test" not in checked.stdout, "its tests fail and meet each rule"
    assert apc("contract", "new", "mine", "--kind", kind).returncode == 2


def test_a_failed_test_of_an_overlay_ends_with_1(apc: ApcCommand) -> None:
    apc("contract", "new", "mine", "--kind", "plain")
    path = apc.folder / "mine.yml"
    path.write_text(path.read_text().replace('cited("note/1") >= 1', 'cited("note/1") >= 2'))

    tested, checked = apc("contract", "test", "mine.yml"), apc("contract", "check", "mine.yml")

    line = (
        "FAILED  tests[0]: refused by result-rests-on-evidence: A result rests on a note of somebody else "
        '(cited("note/1") = 1); the test wants it accepted'
    )
    assert (tested.returncode, checked.returncode) == (1, 1)
    assert tested.stdout.splitlines()[0] == line
    assert checked.stdout.splitlines()[-1] == line


def test_check_warns_of_what_is_probably_not_meant(apc: ApcCommand) -> None:
    apc("contract", "new", "mine", "--kind", "approvals")
    (apc.folder / "shop.py").write_text(
        "from apc_agents import Agent, Team, message\n"
        "from pydantic import BaseModel\n"
        "@message('action/1')\nclass Action(BaseModel):\n    risk: str\n"
        "@message('request/1')\nclass Request(BaseModel):\n    text: str\n"
        "@message('request/2')\nclass Again(BaseModel):\n    text: str\n"
        "@message('orphan/1')\nclass Orphan(BaseModel):\n    text: str\n"
        "desk = Agent('desk', role='desk', swarm='shop')\n"
        "@desk.on(Request)\nasync def take(request: Request, ctx): ...\n"
        "@desk.on(Action)\nasync def act(action: Action, ctx): ...\n"
        "@desk.on(Again)\nasync def again(request: Again, ctx): ...\n"
        "team = Team('shop', agents=[desk], entry='desk', input=Request)\n"
    )
    path = apc.folder / "mine.yml"
    path.write_text(path.read_text().replace("rules:\n", "rules:\n  - {name: idle, for: request/1, require: 'true'}\n"))

    checked = apc("contract", "check", "mine.yml", "--team", "shop:team")

    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.splitlines()[3:] == [
        "warning: request/1 has rules, request/2 has none, and members may send it: add request/2 to `for`, or list in "
        "`only` what members may send",
        "warning: rule idle: no test fails it",
        "warning: rule idle: no test meets it",
        "warning: rule nobody-acts-on-its-own-request: the sender's role may send request/1 itself: add cites_role(…), "
        "or a rule for request/1 that requires sender.role",
        "warning: nobody here knows the roles lead: list all that there are in `roles`, or they are not checked",
    ]


def test_a_mistake_in_an_overlay_is_one_line_with_its_position(apc: ApcCommand) -> None:
    apc("contract", "new", "mine", "--kind", "approvals")
    path = apc.folder / "mine.yml"
    path.write_text(path.read_text().replace("when: 'content.risk", "when: 'content.rsik"))

    for command in ("check", "test", "show", "explain"):
        refused = apc("contract", command, "mine.yml")
        assert refused.returncode == 2
        assert refused.stderr.splitlines() == [
            "apc: contract mine.yml invalid at rules[0].when: line 7, column 12: unknown field content.rsik: "
            "do you mean content.risk?"
        ]


def test_explain_has_the_rules_as_show_has_them(apc: ApcCommand) -> None:
    apc("contract", "new", "mine", "--kind", "approvals")

    shown, explained = apc("contract", "show", "mine.yml"), apc("contract", "explain", "mine.yml")
    plain = apc("contract", "explain", "task")

    heading = "\n\nWhat the rules of the team check\n"
    assert explained.returncode == 0, explained.stderr
    told = explained.stdout.partition(heading)[2].partition("\n\n")[0]
    assert told.splitlines() == [f"  {line}" for line in shown.stdout.splitlines()]
    assert '    when content.risk == "high"\n      needs approved_by("lead")' in told
    assert 'reads content.risk, approved_by("lead")' in told
    assert heading not in plain.stdout


def test_check_warns_of_roles_that_nobody_here_has(apc: ApcCommand) -> None:
    rules = {
        "a": 'sender.role == "fixr"',
        "b": '"desk" in packet.to_roles',
        "c": 'sender.role in ["a-role", "b-role"] || cites_role("logs")',
    }
    written = "".join(f"  - {{name: {name}, for: note/1, require: '{text}'}}\n" for name, text in rules.items())
    (apc.folder / "mine.yml").write_text(
        f"name: mine\nextends: task\nrules:\n{written}tests:\n"
        "  - {packet: {schema: note/1, from: fixr, content: {text: a}}, refused: b}\n"
    )
    listed = (apc.folder / "mine.yml").read_text() + "roles: [fixr, desk, a-role, b-role, logs]\n"
    (apc.folder / "listed.yml").write_text(listed)

    checked, known = apc("contract", "check", "mine.yml"), apc("contract", "check", "listed.yml")

    roles = "a-role, b-role, desk, fixr, logs"
    warning = f"warning: nobody here knows the roles {roles}: list all that there are in `roles`"
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{warning}, or they are not checked" in checked.stdout.splitlines()
    assert "nobody here knows" not in known.stdout


@pytest.mark.long
def test_rules_are_shown_and_compared(apc: ApcCommand) -> None:
    apc("contract", "new", "mine", "--kind", "spending")
    path = apc.folder / "mine.yml"
    (apc.folder / "other.yml").write_text(path.read_text().replace("1000", "500") + "session: {max_rounds: 1}\n")

    shown, full = apc("contract", "show", "mine.yml"), apc("contract", "show", "mine.yml", "--full")
    compared, same = apc("contract", "diff", "mine.yml", "other.yml"), apc("contract", "diff", "mine.yml", "mine.yml")

    assert "mine over task, written out: a later task changes nothing here." in shown.stdout
    assert "  paid: adds content.amount of payment/1, by session\n" in shown.stdout
    assert (
        '  session-limit: payment/1\n    needs content.amount >= 0 && sum("paid") + content.amount <= 1000\n'
        '    reads content.amount, sum("paid")\n' in shown.stdout
    )
    assert [link["name"] for link in json.loads(full.stdout)["team"]["chain"]] == ["task", "mine"]
    assert compared.stdout.splitlines() == [
        "changed  rule session-limit: for payment/1, require content.amount >= 0 && "
        'sum("paid") + content.amount <= 1000, '
        "say A session pays at most 1000., remedy Open another session, or pay less. -> for payment/1, require "
        'content.amount >= 0 && sum("paid") + content.amount <= 500, say A session pays at most 500., '
        "remedy Open another session, or pay less.",
        "changed  session.max_rounds: 2 -> 1",
    ]
    assert same.stdout == "no difference\n"
