"""`apc session explain`: where a session stands, what it waits for, and what would move it."""

import sys
from dataclasses import asdict

import msgspec

from apc_bus.settings import OrchestratorSettings, WorkerSettings
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.output import print_json
from apc_console.output.terminal import echo
from apc_contracts.contract.contract import load_contract
from apc_contracts.explanation import Explanation, explain
from apc_contracts.text import one_line
from apc_log.queries import get_session
from apc_log.session_loading import contract_of_session
from apc_log.watching import read_surroundings


async def print_explanation(session_id: str, *, as_json: bool) -> None:
    """Print the explanation of a session. Raises InputUnusable when the log does not hold it."""
    default = load_contract(OrchestratorSettings().contract)
    async with open_log() as pool:
        try:
            row = await get_session(pool, session_id)
        except msgspec.ValidationError as error:
            raise InputUnusable(f"the state of session {session_id!r} is of another release: {error}") from error
        if row is None:
            raise InputUnusable(
                f"the log holds no session {session_id!r}: `apc session list` shows them; `apc packet refused` shows "
                "whether its START was refused"
            )
        contract = await contract_of_session(pool, row.document.contract_hash, default)
        around = await read_surroundings(pool, session_id, WorkerSettings().heartbeat_silence)
    explanation = explain(row.document, around, contract)
    if as_json or not sys.stdout.isatty():
        print_json({"session_id": session_id, **_document(explanation)})
    else:
        for line in _lines(session_id, explanation):
            echo(one_line(line) if not line.startswith("  ") else f"  {one_line(line)}")


def _document(explanation: Explanation) -> dict[str, object]:
    return {
        "standing": explanation.standing,
        "waits": [{**asdict(wait), "sentence": wait.sentence} for wait in explanation.waits],
        "remarks": explanation.remarks,
    }


def _lines(session_id: str, explanation: Explanation) -> list[str]:
    lines = [f"Session {session_id} is {explanation.standing}."]
    for wait in explanation.waits:
        lines += [f"- {wait.sentence}", f"  {wait.moves}"]
    return [*lines, *(f"- {remark}" for remark in explanation.remarks)]
