"""`apc contract walk|diagram|check`."""

import json
from importlib.resources import files

import pytest
from tests.support.apc_command import ApcCommand

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
