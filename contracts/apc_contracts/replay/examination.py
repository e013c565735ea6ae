"""Check a contract or an overlay, and run its tests, in a process with limits: a hostile file cannot hang its reader.

The process reads one JSON object from its standard input and writes one; nothing of the file is executed by its parent.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apc_contracts.contract.contract import Contract, contract_from_bytes, deployed_contract
from apc_contracts.contract.overlay import is_overlay, load_overlay, named_schemas, read_overlay
from apc_contracts.errors import ContractInvalid
from apc_contracts.replay.rule_tests import RuleTestResult, run_tests, schemas_of_tests

CPU_SECONDS = 20
MEMORY_BYTES = 2 * 1024**3
WAIT_SECONDS = 60
"""How long the process may take on a busy machine."""
_TOO_MUCH = f"it cannot be checked within {CPU_SECONDS} s and {MEMORY_BYTES // 1024**3} GiB: shorten its rules"


@dataclass(frozen=True, slots=True)
class Examined:
    """A usable contract, and what came of the tests in its file."""

    contract: Contract
    is_overlay: bool
    tests: tuple[RuleTestResult, ...] = ()
    guessed: tuple[str, ...] = ()
    """Schemas that nobody knew; their types were taken from the tests."""


def examine(
    body: bytes,
    path: Path | str,
    parents: Mapping[str, bytes],
    schemas: Mapping[str, Mapping[str, Any]],
    roles: Iterable[str] | None = None,
    *,
    guesses: bool = False,
) -> Examined:
    """Return the contract in a file's bytes, written out if it is an overlay, and what came of its tests.

    Args:
        body: a contract (JSON) or an overlay (YAML or JSON).
        path: its file, for errors.
        parents: the contracts that an overlay can extend, by name.
        schemas: the documents of the schemas that are known.
        roles: the roles that are known; None = any will do.
        guesses: take the types of other schemas from the tests.

    Raises:
        ContractInvalid: it cannot be used; with file, place, line and column; or it needs too much time or memory.
    """
    given = {
        "body": body.decode("utf-8", "surrogateescape"),
        "path": str(path),
        "parents": {name: text.decode() for name, text in parents.items()},
        "schemas": dict(schemas),
        "roles": None if roles is None else sorted(roles),
        "guesses": guesses,
    }
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(
            command, input=json.dumps(given).encode(), capture_output=True, timeout=WAIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ContractInvalid("$", _TOO_MUCH, str(path)) from error
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        is_bound = done.returncode < 0 or last.startswith("MemoryError")
        raise ContractInvalid("$", _TOO_MUCH if is_bound else f"checking it failed: {last}", str(path))
    found = json.loads(done.stdout)
    if "invalid" in found:
        raise ContractInvalid(found["place"], found["invalid"], str(path))
    tests = tuple(
        RuleTestResult(one["name"], one["passed"], one["said"], frozenset(one["failed"]), frozenset(one["held"]))
        for one in found["tests"]
    )
    return Examined(contract_from_bytes(found["body"].encode()), found["is_overlay"], tests, tuple(found["guessed"]))


def holds_overlay(body: bytes) -> bool:
    """Return whether a file holds an overlay, and no whole contract: that is JSON and extends nothing."""
    try:
        return is_overlay(json.loads(body))
    except (ValueError, RecursionError):
        return True


def _examined(given: Mapping[str, Any]) -> dict[str, Any]:
    body = given["body"].encode("utf-8", "surrogateescape")
    path, schemas, guessed = given["path"], dict(given["schemas"]), dict[str, Any]()
    try:
        if not holds_overlay(body):
            contract = deployed_contract(body, path)
            return {"body": contract.body.decode(), "is_overlay": False, "tests": [], "guessed": []}
        if given["guesses"]:
            guessed = {name: one for name, one in _guessed(body).items() if name not in schemas}
        parents = given["parents"]

        def parent(name: str) -> Contract | None:
            return contract_from_bytes(parents[name].encode()) if name in parents else None

        contract = load_overlay(body, path, parent, guessed | schemas, given["roles"])
        results = run_tests(contract, read_overlay(body).tests, guessed | schemas)
    except ContractInvalid as error:
        return {"invalid": error.message, "place": error.place}
    tests = [
        {"name": one.name, "passed": one.has_passed, "said": one.said, "failed": [*one.failed], "held": [*one.held]}
        for one in results
    ]
    return {"body": contract.body.decode(), "is_overlay": True, "tests": tests, "guessed": sorted(guessed)}


def _guessed(body: bytes) -> dict[str, Any]:
    try:
        overlay = read_overlay(body)
        named = {schema: {"type": "object"} for _, schema in named_schemas(overlay)}
        return named | schemas_of_tests(overlay.tests)
    except ContractInvalid:
        return {}  # the overlay is read again, and its error placed


def _limit() -> None:
    """Limit this process. Where the system has no such limits, its parent's patience remains."""
    try:
        import resource
    except ImportError:
        return
    for which, wanted in ((resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_AS, MEMORY_BYTES)):
        _, hard = resource.getrlimit(which)
        lowest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(which, (lowest, lowest))
        except (OSError, ValueError):
            continue


if __name__ == "__main__":
    _limit()
    json.dump(_examined(json.load(sys.stdin)), sys.stdout)
