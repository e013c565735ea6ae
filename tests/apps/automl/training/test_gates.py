"""Each measured gate at its ends and in between."""

import numpy as np
import pytest

from apc_automl.training import gates


def test_a_perfect_a_trivial_and_a_worse_model() -> None:
    labels = np.array(["a", "b"] * 10)
    perfect = np.array([[1.0, 0.0], [0.0, 1.0]] * 10)
    baseline = gates.baseline_loss(labels, labels, ("a", "b"))
    assert gates.outcome_of(gates.loss_of(labels, perfect, ("a", "b")), baseline) > 0.99
    assert gates.outcome_of(baseline, baseline) == 0.0
    assert gates.outcome_of(gates.loss_of(labels, 1 - perfect, ("a", "b")), baseline) == 0.0


def test_one_wrong_certainty_costs_a_bounded_loss() -> None:
    labels = np.array(["a", "b"])
    wrong = np.array([[0.0, 1.0], [0.0, 1.0]])
    assert gates.loss_of(labels, wrong, ("a", "b")) == pytest.approx(-np.log(gates.LOWEST_PROBABILITY) / 2, rel=0.01)


def test_regression_is_judged_by_its_squared_error() -> None:
    labels = np.array([1.0, 2.0, 3.0])
    baseline = gates.baseline_loss(labels, labels, ())
    assert baseline == pytest.approx(2 / 3)
    assert gates.outcome_of(gates.loss_of(labels, labels, ()), baseline) == 1.0


def test_a_baseline_without_loss_leaves_nothing_to_gain() -> None:
    assert gates.outcome_of(0.0, 0.0) == 0.0


def test_stability_falls_with_the_spread_of_the_folds() -> None:
    assert gates.stability_of([0.8, 0.8, 0.8, 0.8]) == 1.0
    assert gates.stability_of([0.9, 0.8, 0.9, 0.8]) > gates.stability_of([1.0, 0.4, 1.0, 0.4])


def test_learnability_falls_when_more_data_hurt() -> None:
    assert gates.learnability_of([0.5, 0.6, 0.7]) == 1.0
    assert gates.learnability_of([0.8, 0.4, 0.6]) == 0.5
    assert gates.learnability_of([0.0, 0.0, 0.3]) == 1.0
    assert gates.learnability_of([0.5, 0.6, 0.0]) == 0.0


def test_generalization_is_bounded() -> None:
    assert gates.generalization_of(0.4, 0.8) == 0.5
    assert gates.generalization_of(0.9, 0.1) == 2.0
    assert gates.generalization_of(0.9, 0.0) == 0.0


def test_the_error_of_a_row_is_that_of_its_class() -> None:
    labels = np.array(["b", "a"])
    errors = gates.errors_of(labels, np.array([[0.75, 0.25], [1.0, 0.0]]), ("a", "b"))
    assert errors.tolist() == pytest.approx([-np.log(0.25), 0.0])
    assert gates.errors_of(np.array([1.0, 2.0]), np.array([1.5, 1.0]), ()).tolist() == [0.5, 1.0]


def test_agreement_is_exact() -> None:
    first = np.array([[0.1, 0.9], [0.2, 0.8]])
    assert gates.agreement_of(first, first.copy()) == 1.0
    assert gates.agreement_of(first, first + np.array([[0.0, 0.0], [1e-16, 1e-9]])) == 0.5
