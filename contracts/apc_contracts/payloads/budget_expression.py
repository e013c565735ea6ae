"""The expression of a BUDGET constraint: `packets=N; wall_ms=N; tokens=N; cost=X`, any subset.

Source: docs/specification/contract.md section 3.
"""

import re
from collections.abc import Mapping

from apc_contracts.contract_model import MAX_DURATION_MS
from apc_contracts.payloads.by_type import TaskIrPayload
from apc_contracts.payloads.task_ir import ConstraintKind, IrConstraint

RESOURCES = ("packets", "wall_ms", "tokens", "cost")
"""What a budget may limit: packets of agents, milliseconds, tokens, cost in the operator's unit."""
_PART = re.compile(
    r"\s*(?:(packets|wall_ms|tokens)\s*=\s*([0-9]{1,15})|(cost)\s*=\s*([0-9]{1,15}(?:\.[0-9]{1,9})?))\s*"
)


def parse_budget(expression: str) -> Mapping[str, float]:
    """Return resource -> amount; empty for any text that does not match. A trailing semicolon is allowed."""
    asked: dict[str, float] = {}
    for part in expression.strip().removesuffix(";").split(";"):
        match = _PART.fullmatch(part)
        if match is None:
            return {}
        counted, count, cost, amount = match.groups()
        name = counted or cost
        if name in asked:
            return {}
        asked[name] = float(amount) if cost else int(count)
    return asked if asked.get("wall_ms", 0) <= MAX_DURATION_MS else {}


def budget_of(payload: TaskIrPayload) -> dict[str, float]:
    """Return what a TASK_IR reserves: the smallest amount of each resource over its BUDGET constraints; may be empty.

    May be empty.
    """
    asked: dict[str, float] = {}
    for constraint in payload.objects:
        if isinstance(constraint, IrConstraint) and constraint.constraint_kind is ConstraintKind.BUDGET:
            for name, amount in parse_budget(constraint.expression).items():
                asked[name] = min(amount, asked.get(name, amount))
    return asked
