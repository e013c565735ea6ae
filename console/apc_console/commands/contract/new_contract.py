"""A new contract file: a packaged one under another name, with comments."""

import json
import re
from pathlib import Path

from apc_console.errors import InputUnusable
from apc_contracts.contract.contract import Contract, contract_from_bytes

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


def write_contract(name: str, base: Contract) -> Path:
    """Write NAME.json into this folder and return its path.

    Raises:
        InputUnusable: the name is no file name, or the file exists.
    """
    if not _NAME.fullmatch(name):
        raise InputUnusable(
            "a contract's name has 1 to 64 letters, digits, '.', '_' or '-', and begins with none of '.-'"
        )
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
