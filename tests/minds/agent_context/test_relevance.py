"""The Symbolic Resonance Score: in 0..1, monotone in each part, and what each part counts."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_agents import Agent
from apc_contracts.agent import AgentContext, ContextMessage
from apc_minds.situation import RelevanceSettings, Resonance, resonance

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PART = st.floats(0, 1)
PARTS = st.builds(Resonance, PART, PART, PART, PART, PART)
WEIGHTS = st.builds(
    RelevanceSettings,
    **{field.name: st.floats(0, 1_000) for field in fields(Resonance)},
)
SYMBOL = st.sampled_from(["pump", "valve", "Motor", "sage"])
SETTINGS = RelevanceSettings()


def context(**given_fields: object) -> AgentContext:
    """Return a context of these fields."""
    required = {"context_id": UUID(int=1), "session_id": UUID(int=2), "timestamp_utc": NOON}
    return AgentContext.model_validate({**required, **given_fields})


CONTEXTS = st.builds(
    lambda focus, strength, numbers, said, age: context(
        narrative_state={"symbolic_focus": focus},
        user_profile={
            "archetypal_alignment": {"primary_archetype": "Sage", "alignment_strength": strength},
            "resonance_fingerprint_summary": numbers,
        },
        interaction_history={
            "recent_messages": [{"content": said, "timestamp_utc": NOON + timedelta(seconds=age)}],
        },
    ),
    st.lists(SYMBOL, max_size=3),
    PART,
    st.dictionaries(SYMBOL, st.floats(-5, 5) | st.text(max_size=2) | st.booleans(), max_size=3),
    st.text(max_size=20),
    st.integers(-10_000, 10_000),
)


@given(PARTS, WEIGHTS, st.sampled_from([field.name for field in fields(Resonance)]), PART)
def test_a_score_is_in_its_range_and_monotone_in_each_part(
    parts: Resonance, weights: RelevanceSettings, name: str, other: float
) -> None:
    score = parts.score(weights)
    assert 0 <= score <= 1
    changed = replace(parts, **{name: other}).score(weights)
    assert changed >= score - 1e-12 if other >= getattr(parts, name) else changed <= score + 1e-12


@given(CONTEXTS, st.lists(SYMBOL, max_size=4), st.text(max_size=20))
def test_every_part_is_in_its_range(situation: AgentContext, symbols: list[str], content: str) -> None:
    message = ContextMessage(content=content, metadata={"symbolic_keys": list(symbols)})
    parts = resonance(message, situation, SETTINGS)
    assert all(0 <= getattr(parts, field.name) <= 1 for field in fields(parts))
    assert 0 <= Agent("a-1", role="r", swarm="s").evaluate_relevance(message, situation) <= 1


@given(CONTEXTS, st.lists(SYMBOL, max_size=4), SYMBOL)
def test_one_more_common_symbol_never_lowers_the_score(situation: AgentContext, keys: list[str], more: str) -> None:
    few, many = (
        resonance(ContextMessage(metadata={"symbolic_keys": list(symbols)}), situation, SETTINGS).score(SETTINGS)
        for symbols in (keys, [*keys, more])
    )
    assert many >= few


def test_each_symbol_of_the_focus_takes_the_same_share_of_the_distance() -> None:
    situation = context(narrative_state={"symbolic_focus": ["Pump", "valve", "pressure loss"]})
    for content, part in (
        ("the PUMPS leak", 0.6),
        ("pump and valve", 1 - 0.4**2),
        ("no pressure", 1 - 0.4**0.5),
        ('{"pump": "a key is no word of the message"}', 0),
        ('{"notes": [{"text": "the pumps leak"}]}', 0.6),
    ):
        assert resonance(ContextMessage(content=content), situation, SETTINGS).symbols == pytest.approx(part)
    assert resonance(ContextMessage(content="pump"), context(), SETTINGS).symbols == 0


@pytest.mark.parametrize(("named", "part"), [("Sage", 0.8), ("Hero", 0.4), ("Fool", 0.0)])
def test_an_archetype_counts_times_its_strength(named: str, part: float) -> None:
    alignment = {"primary_archetype": "sage", "secondary_archetype": "hero", "alignment_strength": 0.8}
    message = ContextMessage(metadata={"archetypes": [named]})
    situation = context(user_profile={"archetypal_alignment": alignment})
    assert resonance(message, situation, SETTINGS).archetype == part


def test_a_fingerprint_counts_the_strongest_symbol() -> None:
    situation = context(user_profile={"resonance_fingerprint_summary": {"Pump": 0.3, "valve": 0.9, "motor": "loud"}})
    assert resonance(ContextMessage(content="pump and valve, motor"), situation, SETTINGS).fingerprint == 0.9
    assert resonance(ContextMessage(content="motor"), situation, SETTINGS).fingerprint == 0


def test_the_history_decays_by_its_half_life() -> None:
    parts = []
    for age in (0, 600, 1200):
        recent = [{"content": "the pump leaks", "timestamp_utc": NOON - timedelta(seconds=age)}]
        situation = context(interaction_history={"recent_messages": recent})
        parts.append(resonance(ContextMessage(content="The pump leaks!"), situation, SETTINGS).history)
    assert parts == [1.0, 0.5, 0.25]


def test_target_and_directive_count_a_half_each() -> None:
    me = UUID(int=7)
    situation = context(target_agent_id=me, processing_directives={"requested_action": "evaluate_data"})
    targets = [str(me)]
    cases: list[tuple[dict[str, Any], list[str], float]] = [
        ({"targets": targets}, ["quote", "evaluate-data"], 1.0),
        ({"targets": targets}, ["idea"], 0.5),
        ({}, ["Evaluate Data"], 0.5),
        ({"packet_type": "EVALUATE_DATA"}, [], 0.0),
    ]
    for metadata, actions, part in cases:
        message = ContextMessage(metadata=metadata)
        assert resonance(message, situation, SETTINGS, actions=actions).directive == part


def test_no_weight_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in fields(Resonance):
        monkeypatch.setenv(f"APC_RELEVANCE_{field.name.upper()}", "0")
    assert Resonance(1, 1, 1, 1, 1).score(RelevanceSettings()) == 0
