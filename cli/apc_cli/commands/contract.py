"""`apc contract`: walk, draw, explain and compare contracts; begin, check, test and register a file."""

import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from apc_bus.settings import BusSettings
from apc_cli.commands.contract_rules import (
    KINDS,
    Surroundings,
    differences,
    read_surroundings,
    rules_in_words,
    summary,
    try_on_log,
    unruled_versions,
    write_overlay,
)
from apc_cli.commands.group import Commands, ContractFile, whole_run_id
from apc_cli.connections import open_bus, open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.files import read_bytes
from apc_cli.output.output import AsJson, print_rows, tell
from apc_cli.output.terminal import echo
from apc_contracts import PacketType
from apc_contracts.contract.collection import load_contracts
from apc_contracts.contract.contract import Contract, contract_from_bytes, load_contract, read_contract_file
from apc_contracts.contract.coordinators import STOP, Coordinator
from apc_contracts.contract.file import EdgeDeclaration
from apc_contracts.contract.omissions import omissions
from apc_contracts.errors import ContractInvalid
from apc_contracts.identity.registry_change import MAX_CONTRACT_BYTES
from apc_contracts.replay.examination import Examined, examine, holds_overlay
from apc_contracts.text import numbered
from apc_log.registry import read_contracts, read_schemas

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_COMMENTS = {
    "coordinator": "The code behind the contract: it fixes which states and events there are.",
    "speaks": "The protocol versions whose packets its sessions admit.",
    "facts": "What guards may read. Add entries that you need, as docs/reference/guards.md lists them; "
    "names, types and scopes are fixed.",
    "machines.inter_agent_coordination.edges": "What moves a session. Drop edges or tighten guards; from every "
    "state a way must lead to CLOSED without the edge that stops.",
    "machines.packet_lifecycle": "The life of one packet; rarely changed.",
    "phases": "Which packet types members may send, by run_phase. Remove a type to forbid it.",
    "required": "Packet types that must carry a lineage, a proof_bundle or a signature.",
    "rights": "Which right a signal needs.",
    "session": "Defaults and limits of a session: rounds, retries, waits.",
    "loops": "After how many repeats a sender is asked, and then refused.",
    "limits": "Bounds of one session. Quotas and sizes come from the deployment's default contract.",
    "verification": "enforce, warn or off, for each thing that a verification checks.",
    "refusals": "The order of the rules is fixed.",
}


def check_name(name: str) -> None:
    """Raise InputUnusable for a name that no contract can have."""
    if not _NAME.fullmatch(name):
        raise InputUnusable(
            "a contract's name has 1 to 64 letters, digits, '.', '_' or '-', and begins with none of '.-'"
        )


def write_contract(name: str, base: Contract) -> Path:
    """Write NAME.json into this folder and return its path.

    Raises:
        InputUnusable: the name is no file name, or the file exists.
    """
    check_name(name)
    document = json.loads(base.body)
    document.pop("$schema", None)
    document.pop("comments", None)
    document.pop("name")
    body = json.dumps({"name": name, "comments": _COMMENTS, **document}, indent=2, ensure_ascii=False) + "\n"
    contract_from_bytes(body.encode())
    path = Path(f"{name}.json")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(body)
    except OSError as error:
        raise InputUnusable(f"cannot write {path}: {error.strerror}") from error
    return path


# A contract in words: who may send what when, what moves a session on, and what ends it.

SESSION_MACHINE = "inter_agent_coordination"
_TASK_EVENTS = {
    "work_started": "the opener sends the first TASK_IR or MESSAGE",
    "work_done": "a decider sends DECISION DONE, and the session has no reviewers",
    "review_requested": "a decider sends DECISION DONE, and the session has reviewers",
    "review_passed": "enough distinct reviewers send DECISION APPROVED with that DONE as parent",
    "review_failed": "a reviewer sends VETO, or the DONE is retracted",
}
_TASK_ENDS = (
    "CANCEL, DEADLINE, BUDGET_EXHAUSTED, NOT_STARTED, STALLED, HANDLER_FAILED (unless on_failure is continue), "
    "or REVIEW_FAILED after the last round"
)


async def find_contract(name: str) -> Contract:
    """Return the contract of a file that exists or has the ending of one; else the one of that name.

    An overlay is written out over its parent.

    A name is looked up among the deployment's default, the packaged ones and APC_CONTRACTS, then in the log.

    Raises:
        ContractInvalid: there is none, or it cannot be used.
        ServiceAway, DatabaseUnavailable: the log that is configured cannot be read.
    """
    if _is_file(name):
        return (await _examined(Path(name)))[0].contract
    settings = BusSettings()
    known = load_contracts(settings.contract, settings.contracts)
    contract = known.named(name)
    return contract if contract is not None else await _registered(name, known.names)


async def _examined(file: Path, team: str | None = None) -> tuple[Examined, bytes, Surroundings]:
    """Return what came of checking a file, its bytes, and what there is around it."""
    body = await asyncio.to_thread(_read, file)
    around = await read_surroundings(team)
    return await asyncio.to_thread(around.examine, body, file), body, around


def _read(file: Path) -> bytes:
    try:
        return read_contract_file(file)
    except OSError as error:
        module, colon, _ = str(file).partition(":")
        hint = f": give the file of the rules, such as {module}.yml, and the team with --team {file}" if colon else ""
        raise ContractInvalid("$", f"cannot read it: {error.strerror}{hint}", str(file)) from error
    except ContractInvalid as error:
        raise ContractInvalid(error.place, error.message, str(file)) from error


def _is_file(name: str) -> bool:
    return name.endswith((".json", ".yml", ".yaml")) or Path(name).is_file()


async def _registered(name: str, others: Sequence[str]) -> Contract:
    try:
        async with open_log() as pool:
            documents = {one.name: one.document for one in await read_contracts(pool)}
    except InputUnusable as error:
        message = (
            f"there is no contract {name!r}; there are: {', '.join(others)}. Registered ones are in the log: {error}"
        )
        raise ContractInvalid("name", message) from error
    if name not in documents:
        there = ", ".join(sorted({*others, *documents}))
        raise ContractInvalid("name", f"there is no contract {name!r}; there are: {there}")
    return contract_from_bytes(documents[name].encode())


def explained(contract: Contract) -> Iterator[str]:
    """Yield the contract in words, line by line."""
    spoken = " and ".join(sorted(contract.speaks))
    yield f"{contract.name}: sessions of the coordinator {contract.coordinator}, which speak {spoken}."
    yield from _who_sends(contract)
    yield from _what_checks(contract)
    if contract.team is not None:
        yield ""
        yield "What the rules of the team check"
        yield from (f"  {line}" for line in rules_in_words(contract))
    yield from _what_moves(contract)
    yield from _what_ends(contract)


def _who_sends(contract: Contract) -> Iterator[str]:
    yield ""
    yield "Who may send what when"
    machine = contract.file.machines[SESSION_MACHINE]
    for state in machine.states:
        phase = contract.phase_of(state)
        if phase is None or state in machine.terminal:
            continue
        types = contract.file.phases[phase].packet_types
        yield f"  In {state} (run_phase {phase}) members may send {_listed(types)}."
    yield f"  In every state: {_listed(contract.file.control_types)}."
    yield f"  After the end: {_listed(contract.session.recorded_after_end)}; they are recorded and change nothing."
    for signal, right in contract.rights.signals.items():
        yield f"  SIGNAL {signal} needs the right {right}."
    if contract.coordinator is Coordinator.TASK:
        yield "  START names deciders and reviewers: DECISION DONE is for the first, VETO and approval for the second."
    else:
        yield f"  A DECISION that moves the session needs the right {contract.rights.moves_session}."
    for part, required in (
        ("a lineage", contract.lineage_required),
        ("a proof_bundle", contract.proof_required),
        ("a signature", contract.signature_required),
    ):
        if required:
            yield f"  Only with {part}: {_listed(sorted(required))}."


def _what_checks(contract: Contract) -> Iterator[str]:
    checks = contract.file.drift_checks
    if not checks:
        return
    yield ""
    yield "What is checked in each packet of an agent, control types aside"
    for check in checks:
        effect = "else refused with DRIFT_CHECK_FAILED" if check.mode == "enforce" else "else a warning in the log"
        if check.mode != "off":
            yield f"  {check.name}, at {check.path}: {check.guard}; {effect}."


def _what_moves(contract: Contract) -> Iterator[str]:
    yield ""
    yield "What moves a session on"
    for edge in _edges(contract):
        if edge.event != STOP:
            yield f"  {' or '.join(edge.sources)} to {edge.to}: {_cause(contract, edge)}."


def _cause(contract: Contract, edge: EdgeDeclaration) -> str:
    if contract.coordinator is Coordinator.TASK:
        cause = f"{edge.event}: {_TASK_EVENTS[edge.event]}"
    else:
        raisers = [str(raiser) for raiser, events in contract.file.raised_by.items() if edge.event in events]
        cause = f"{edge.event}, which can come after {_listed(raisers)}"
    if edge.gate is not None:
        gate = " and ".join(criterion.guard for criterion in contract.file.promotion_gate)
        return f"{cause}; only if {gate}"
    return cause if edge.guard is None else f"{cause}; only if {edge.guard}"


def _what_ends(contract: Contract) -> Iterator[str]:
    yield ""
    yield "What ends it"
    for edge in _edges(contract):
        if edge.to == "CLOSED":
            yield f"  CLOSED, the good end: {edge.event} from {' or '.join(edge.sources)}."
    stops = _TASK_ENDS if contract.coordinator is Coordinator.TASK else "CANCEL, a spent budget, or a missed deadline"
    if any(edge.event == STOP for edge in _edges(contract)):
        yield f"  HALTED: STOP, {stops}."


def _edges(contract: Contract) -> tuple[EdgeDeclaration, ...]:
    return contract.file.machines[SESSION_MACHINE].edges


def _listed(names: "list[str] | list[PacketType] | tuple[PacketType, ...]") -> str:
    return ", ".join(names) or "nothing"


# `apc contract`: walk, draw and explain contracts; begin, check and register a contract file.

app = Commands(help="Walk, draw, explain, check and register contracts.")

MachineName = Annotated[
    str, typer.Argument(help="inter_agent_coordination, intra_agent_coordination, packet_lifecycle.")
]

TeamName = Annotated[
    str | None, typer.Option("--team", metavar="MODULE:NAME", help="Take the messages and roles of this team.")
]


def is_asked() -> bool:
    """Return whether somebody sits at the terminal who can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


@app.command()
def walk(
    machine: MachineName,
    events: Annotated[list[str], typer.Argument(metavar="EVENT…", help="The events, in order.")],
    facts: Annotated[str, typer.Option(metavar="JSON", help="The facts that the guards read: one object.")] = "{}",
    contract_file: ContractFile = None,
) -> None:
    """Print the states that a machine passes through, one per line; exit 2 at an illegal event or a false guard."""
    known = _facts(facts)
    walked = load_contract(contract_file).machine(machine)
    state = walked.initial
    echo(state)
    for event in events:
        state = walked.step(state, event, known)
        echo(state)


@app.command()
def diagram(machine: MachineName, contract_file: ContractFile = None) -> None:
    """Print a machine as a Mermaid state diagram."""
    echo(load_contract(contract_file).machine(machine).mermaid())


@app.command()
async def check(
    file: Annotated[Path, typer.Argument(help="A contract file, or the overlay of a team: YAML or JSON.")],
    team: TeamName = None,
) -> None:
    """Check a contract or an overlay: schema, states, guards, rules; exit 2 and name the place of the first gap.

    Of an overlay also its schemas and roles (of the log, where there is one, and of --team), what a packet may cost,
    its tests (exit 1 if one fails), and warnings.
    """
    examined, body, around = await _examined(file, team)
    contract = examined.contract
    echo(f"{file}: a usable contract, sha256 {contract.hash.hex()}")
    for line in summary(examined, body, around):
        echo(line)
    failed = [one for one in examined.tests if not one.has_passed]
    for result in failed:
        echo(f"FAILED  {result.name}: {result.said}")
    if failed:
        raise typer.Exit(1)


@app.command()
async def test(
    file: Annotated[Path, typer.Argument(help="The overlay of a team, with `tests`.")], team: TeamName = None
) -> None:
    """Run the tests of an overlay by the gate's own rules, without a system: a line each, exit 1 if one fails.

    Without a database and without --team, the types of its schemas are taken from the tests.
    """
    examined, _, _ = await _examined(file, team)
    if not examined.tests:
        raise InputUnusable(f"{file} has no tests: write some under `tests`; `apc contract new` shows how")
    for result in examined.tests:
        echo(f"{'ok      ' if result.has_passed else 'FAILED  '}{result.name}: {result.said}")
    if not all(result.has_passed for result in examined.tests):
        raise typer.Exit(1)


@app.command("try")
async def try_rules(
    file: Annotated[Path, typer.Argument(help="A contract file, or the overlay of a team.")],
    run_id: Annotated[
        str | None, typer.Option("--run", help="Try it on the sessions of this run.", parser=whole_run_id)
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Try it on the sessions that began within this time, like 90m, 12h or 7d.")
    ] = None,
) -> None:
    """Judge the sessions of the log by a contract, and print what would have been decided otherwise.

    Whole sessions are replayed, each packet in the session as it was. Exit 1 if a decision would have been different
    or a session could not be read.
    """
    if (run_id is None) == (since is None):
        raise InputUnusable("name the sessions by one of --run RUN and --since TIME")
    examined, _, _ = await _examined(file)
    tried, trial = await try_on_log(examined.contract, run_id, since)
    for change in trial.changes:
        what = f"{change.shard}/{change.seq}  {change.what} {change.packet_id}"
        echo(f"{what}: was {change.was}, would be {change.would_be}")
    for session_id, why in tried.unreadable.items():
        echo(f"session {session_id} cannot be tried: {why}")
    told = f"{trial.count} of {numbered(trial.decisions, 'decision')} would have been different"
    echo(f"{told}, in {numbered(tried.sessions, 'session')}")
    if trial.count or tried.unreadable:
        raise typer.Exit(1)


@app.command()
async def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A contract's name or its file.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.")],
) -> None:
    """Print what B has added, dropped and changed: rules, counters, limits, everything else."""
    lines = list(differences(await find_contract(first), await find_contract(second)))
    for line in lines or ["no difference"]:
        echo(line)


@app.command()
async def explain(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A contract's name or its file.")],
) -> None:
    """Say in words who may send what when, what is checked, by which rules, what moves a session on, and what ends it.

    A name is one of the packaged contracts, of APC_CONTRACTS, or of those that are registered in the log.
    """
    for line in explained(await find_contract(name)):
        echo(line)


@app.command()
async def new(
    name: Annotated[str, typer.Argument(help="The new contract's name; the file is NAME.yml, or NAME.json.")],
    kind: Annotated[
        str | None, typer.Option(help=f"What the team does: {', '.join(KINDS)}. Asked at a terminal.")
    ] = None,
    base: Annotated[
        str | None, typer.Option("--from", metavar="CONTRACT", help="Copy this whole contract instead.")
    ] = None,
) -> None:
    """Write NAME.yml, two rules over the contract `task` with their tests; never over another file.

    With --from NAME.json: the whole contract, with a comment for each part that you may change.
    """
    if base is not None:
        if kind is not None:
            raise InputUnusable("--kind begins a file of rules, --from copies a whole contract: give one of them")
        path = write_contract(name, await find_contract(base))
        echo(f"{path}: change it, then: apc contract check {path}")
        return
    check_name(name)
    if kind is None:
        kind = typer.prompt(f"What does the team do ({', '.join(KINDS)})?", default="plain") if is_asked() else "plain"
    path = write_overlay(name, kind)
    echo(f"{path}: change it, then: apc contract test {path}")


@app.command()
async def register(file: Annotated[Path, typer.Argument(help="A contract file; `-` is the standard input.")]) -> None:
    """Register a contract under the name in its file; returns when every shard has it. No gate has to restart.

    An overlay is written out over its parent, with the registered schemas; a later parent changes nothing.

    Another file of the same name is its next revision: sessions that are open keep theirs. After 10 s the command
    names the shards that have not confirmed and exits with 4; repeat it.
    """
    from apc_client.registration import register_contract, registrable  # they bring the whole system along

    body = read_bytes(file)
    if len(body) > MAX_CONTRACT_BYTES:
        raise InputUnusable(f"{file}: a registered contract has at most {MAX_CONTRACT_BYTES} bytes: shorten it")
    if not holds_overlay(body):
        await asyncio.to_thread(examine, body, file, {}, {})
        registrable(body, file)
    settings = BusSettings()
    async with open_log() as pool, open_bus(settings) as bus:
        registered = await register_contract(bus, pool, settings.shards, body, file)
        schemas = await read_schemas(pool)
    name, digest = registered.contract.name, registered.contract.hash.hex()
    echo(f"contract {name} is registered, revision {registered.revision}, sha256 {digest}")
    team = registered.contract.team
    unruled = () if team is None else unruled_versions(team, schemas)
    tell([f"warning: {one}" for one in (*omissions(registered.contract), *unruled)])


@app.command("list")
async def list_contracts(as_json: AsJson = False) -> None:
    """List the registered contracts, each with its newest revision."""
    async with open_log() as pool:
        contracts = await read_contracts(pool)
    rows = [
        {"contract": one.name, "revision": one.revision, "sha256": sha256(one.document.encode()).hexdigest()}
        for one in sorted(contracts, key=lambda one: one.name)
    ]
    weight = ("contract", "revision")
    print_rows(rows, title="Contracts", as_json=as_json, empty="no contract is registered", weight=weight)


@app.command()
async def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A contract's name or its file.")],
    full: Annotated[bool, typer.Option("--full", help="Print the whole contract as JSON, written out.")] = False,
) -> None:
    """Print the rules of a team as its people read them.

    A name is one of the packaged contracts, of APC_CONTRACTS, or of those that are registered in the log.
    """
    contract = await find_contract(name)
    for line in [contract.body.decode()] if full else rules_in_words(contract):
        echo(line)


def _facts(text: str) -> dict[str, Any]:
    try:
        facts = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise typer.BadParameter(f"--facts is no JSON: {error}") from error
    if not isinstance(facts, dict):
        raise typer.BadParameter('--facts must be one JSON object, such as {"generation": 11}')
    return facts
