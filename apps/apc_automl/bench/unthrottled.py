"""The contract with open transfer windows: what the protocol is compared with."""

import json
from importlib.resources import files
from pathlib import Path

from apc_contracts.contract.contract import load_contract


def write_unthrottled(path: Path) -> Path:
    """Write the packaged contract, changed by data alone: transfers from generation 1, from the leader, without a
    cap. Raises ContractInvalid if that is no contract any more."""
    document = json.loads((files("apc_contracts") / "data/apc-1.0.json").read_bytes())
    document["name"] = "unthrottled"
    document["transfer_windows"] = [
        {"name": "open", "first_generation": 0, "is_open": True, "allows_cross_use_case": True}
    ]
    document["phases"]["REFINEMENT"]["transfer"]["guard"] = "sender_score > receiver_score"
    document["phases"]["CONVERGENCE"]["transfer"]["guard"] = "top_k <= 10.0"
    for edge in document["machines"]["inter_agent_coordination"]["edges"]:
        if edge["event"] == "generation_window_open":
            edge["guard"] = "generation >= 1.0"
    path.write_text(json.dumps(document, indent=1))
    load_contract(path)
    return path
