"""`apc agent show`: one agent, and the state of its latest handler invocations."""

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from apc_console.commands.agent.agents_view import listed
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.output import print_json, print_rows
from apc_contracts.contract.contract import load_contract
from apc_log.queries import list_invocations


async def print_agent(agent_id: str, contract_file: Path | None, *, limit: int, as_json: bool) -> None:
    """Print an agent's registration and its invocations. Raises ContractInvalid; InputUnusable: no such agent."""
    contract = load_contract(contract_file)
    async with open_log() as pool:
        agent = next((row for row in await listed(pool, datetime.now(UTC)) if row["agent_id"] == agent_id), None)
        if agent is None:
            raise InputUnusable(f"no agent {agent_id!r} was ever registered: `apc agent list` shows who was")
        invocations = await list_invocations(pool, contract, agent_id, limit=limit)
    if as_json or not sys.stdout.isatty():
        print_json({**agent, "invocations": [asdict(one) for one in invocations]})
        return
    print_rows([agent], title=f"agent {agent_id}", as_json=False, empty="")
    rows = [
        {
            "when": one.last_emission_at,
            "session": one.session_id,
            "cause": one.cause_type,
            "cause_packet_id": one.cause_packet_id,
            "emissions": one.emissions,
            "state": one.state,
            "ended": one.ended,
        }
        for one in invocations
    ]
    print_rows(rows, title="handler invocations, the newest first", as_json=False, empty="it has emitted nothing yet")
