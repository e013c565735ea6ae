"""Admission: one small function per rule, an ordered tuple of rules, and the verdict they produce.

Everything here is a pure function of its arguments. The gate, the worker's early check, the offline validator and the
replay all call `admit`.
"""

from apc_contracts.admission.admit import admit, judge_held, judge_transfer, transfer_record
from apc_contracts.admission.case import Case, Rule, Stage
from apc_contracts.admission.record import facts_record, note_place
from apc_contracts.admission.recorded import SessionSnapshot, judge_in_session, judge_recorded
from apc_contracts.admission.rules.order import RULES

__all__ = [
    "RULES",
    "Case",
    "Rule",
    "SessionSnapshot",
    "Stage",
    "admit",
    "facts_record",
    "judge_held",
    "judge_in_session",
    "judge_recorded",
    "judge_transfer",
    "note_place",
    "transfer_record",
]
