"""The figures of a protocol: bounds, monotony, order, lift against a baseline computed another way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_contracts.contract.contract import load_contract
from apc_contracts.protocol.effectiveness import (
    EvalTally,
    ProtocolTally,
    effectiveness,
    is_counted,
    measure,
)

RULES = load_contract().effectiveness
SHARES = st.floats(0.0, 1.0)
EVALS = st.lists(st.tuples(SHARES, st.none() | SHARES), max_size=8)
TASKS = st.dictionaries(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), EVALS, max_size=6)


def tally_of(evals: list[tuple[float, float | None]]) -> EvalTally:
    tally = EvalTally()
    for outcome, drift_risk in evals:
        tally.count(outcome, drift_risk)
    return tally


def test_worked_example() -> None:
    tally = ProtocolTally(transfers=8, accepted=6, scores=tally_of([(0.9, 0.1), (0.7, 0.3)]))

    figures = measure(tally, RULES)

    assert figures.acceptance_rate == 0.75
    assert figures.average_outcome == pytest.approx(0.8)
    assert figures.average_drift_risk == pytest.approx(0.2)
    assert figures.effectiveness == pytest.approx(0.5 * 0.75 + 0.35 * 0.8 + 0.15 * (1 - 0.2))


@given(st.integers(0, 20), st.integers(0, 20), EVALS)
def test_bounds(accepted: int, refused: int, evals: list[tuple[float, float | None]]) -> None:
    figures = measure(ProtocolTally(accepted + refused, accepted, set(), tally_of(evals)), RULES)

    for share in (figures.acceptance_rate, figures.average_outcome, figures.average_drift_risk, figures.effectiveness):
        assert 0.0 <= share <= 1.0


@given(SHARES, SHARES, SHARES, SHARES)
def test_monotone(acceptance: float, outcome: float, drift_risk: float, more: float) -> None:
    before = effectiveness(acceptance, outcome, drift_risk, RULES)

    assert effectiveness(max(acceptance, more), outcome, drift_risk, RULES) >= before
    assert effectiveness(acceptance, max(outcome, more), drift_risk, RULES) >= before
    assert effectiveness(acceptance, outcome, max(drift_risk, more), RULES) <= before


@given(st.floats(-5.0, 5.0), st.floats(-5.0, 5.0), st.floats(-5.0, 5.0))
def test_parts_are_clamped(acceptance: float, outcome: float, drift_risk: float) -> None:
    within = (min(1.0, max(0.0, part)) for part in (acceptance, outcome, drift_risk))

    assert effectiveness(acceptance, outcome, drift_risk, RULES) == effectiveness(
        next(within), next(within), next(within), RULES
    )


@given(
    st.lists(st.tuples(SHARES, st.none() | SHARES)).flatmap(
        lambda found: st.tuples(st.just(found), st.permutations(found))
    )
)
def test_sums_do_not_depend_on_their_order(
    both: tuple[list[tuple[float, float | None]], list[tuple[float, float | None]]],
) -> None:
    assert tally_of(both[0]) == tally_of(both[1])


def test_what_says_nothing_of_the_protocol_does_not_count() -> None:
    assert is_counted(None, RULES)
    assert is_counted("THROTTLE_SCORE", RULES)
    assert not is_counted("PROTOCOL_DECAYED", RULES)
    assert not is_counted("NOT_AUTHORIZED", RULES)
