"""Prompts are made of templates, persona and constraints."""

from pathlib import Path
from typing import Any

import pytest

from apc_minds.context import ContextSession, PromptBuilder, PromptInvalid

PLAIN = PromptBuilder({"plain": "{persona}|{constraints}"}, {"default": "{name} {degree} {value}"})

AXES = (
    "aesthetic", "categorical", "generativity", "gratitude", "heterarchy", "joy",
    "ambition", "creativity", "curiosity", "patience", "resilience", "trust", "warmth",
    "depth",
)  # fmt: skip
"""Templates of the protocol's voice, of its town, and ours; the templates of the package are these and the default."""


def test_the_package_has_a_template_for_each_axis() -> None:
    assert set(PromptBuilder.load().persona_templates) == {*AXES, "default"}


def test_a_prompt_has_persona_and_constraints() -> None:
    prompt = PLAIN.build_system_prompt("plain", {"warmth": 0.9, "depth": 0.25}, ["Be  brief.\nAlways.", "No {jokes}."])
    assert prompt == (
        "Your persona:\ndepth low 0.25\nwarmth very high 0.90"
        "|You must keep to this:\n- Be brief. Always.\n- No {jokes}."
    )
    assert PLAIN.build_system_prompt("plain", {}, []) == "|"


@pytest.mark.parametrize("agent_type", ["assistant", "kgent", "citizen"])
def test_the_templates_of_the_package_are_complete(agent_type: str) -> None:
    prompt = PromptBuilder.load().build_system_prompt(agent_type, {"warmth": 0.5, "wit": 1}, ["Tell the truth."])
    assert (
        "Warmth towards the reader: balanced (0.50; 0 = matter-of-fact and reserved, 1 = warm and personal)" in prompt
    )
    assert "wit: very high (1.00; 0 = nothing of it, 1 = all of it)" in prompt
    assert "- Tell the truth." in prompt


@pytest.mark.parametrize(
    ("value", "degree"),
    [
        (0, "very low"),
        (0.2, "very low"),
        (0.21, "low"),
        (0.5, "balanced"),
        (0.8, "high"),
        (0.81, "very high"),
        (1, "very high"),
    ],
)
def test_a_coordinate_from_0_to_1_has_a_degree(value: float, degree: str) -> None:
    assert f"wit {degree} {value:.2f}" in PLAIN.build_system_prompt("plain", {"wit": value}, [])


@pytest.mark.parametrize("axis", AXES)
def test_each_axis_tells_what_its_ends_mean(axis: str) -> None:
    low, high = (PromptBuilder.load().build_system_prompt("assistant", {axis: value}, []) for value in (0.0, 1.0))
    assert ": very low (0.00; 0 = " in low
    assert ": very high (1.00; 0 = " in high
    assert ", 1 = " in high


async def test_a_builder_is_told_its_specialty_and_task() -> None:
    session = ContextSession("s-1")
    await session.add_user_turn("Begin {task}.")
    prompt = session.build_prompt("builder", {"depth": 0.4}, specialty="pumps", task="mend {it}")
    assert prompt.startswith("You are a builder in a workshop. Your specialty: pumps.\n\nYour task: mend {it}\n")
    assert prompt.endswith("\n\nuser: Begin {task}.")
    assert session.build_system_prompt("builder", specialty="pumps", task="mend").startswith("You are a builder")


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"agent_type": "nobody"}, "agent_type"),
        ({"agent_type": "builder", "task": "mend"}, "specialty"),
        ({"agent_type": "assistant", "task": "mend"}, "task"),
        ({"agent_type": "assistant", "eigenvectors": {"wit": 1.5}}, "eigenvectors.wit"),
        ({"agent_type": "assistant", "eigenvectors": {"wit": -0.1}}, "eigenvectors.wit"),
        ({"agent_type": "assistant", "eigenvectors": {"wit": float("nan")}}, "eigenvectors.wit"),
        ({"agent_type": "assistant", "eigenvectors": {"wit": "high"}}, "eigenvectors.wit"),
        ({"agent_type": "assistant", "eigenvectors": {"wit": True}}, "eigenvectors.wit"),
    ],
)
def test_what_does_not_fit_a_template_is_refused(arguments: dict[str, Any], place: str) -> None:
    with pytest.raises(PromptInvalid) as refused:
        ContextSession("s-1").build_prompt(**arguments)
    assert refused.value.place == place


@pytest.mark.parametrize(
    ("system", "persona", "place"),
    [
        ({"a": "{persona"}, {}, "system/a"),
        ({"a": "{persona.__class__}"}, {}, "system/a"),
        ({"a": "{}"}, {}, "system/a"),
        ({"a": ""}, {"wit": "{mood}"}, "persona/wit"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(system: dict[str, str], persona: dict[str, str], place: str) -> None:
    with pytest.raises(PromptInvalid) as refused:
        PromptBuilder(system, persona)
    assert refused.value.place == place


def test_templates_are_files(tmp_path: Path) -> None:
    with pytest.raises(PromptInvalid, match="no templates"):
        PromptBuilder.load(tmp_path)
    for name, text in (("system/own.txt", "Mine. {persona}"), ("persona/default.txt", "{name}={value}")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    prompts = PromptBuilder.load(tmp_path)
    assert prompts.build_system_prompt("own", {"wit": 0.5}, []) == "Mine. Your persona:\nwit=0.50"
    assert (list(prompts.system_templates), list(prompts.persona_templates)) == (["own"], ["default"])


def test_a_persona_without_template_is_refused() -> None:
    with pytest.raises(PromptInvalid, match="no template persona/wit"):
        PromptBuilder({"a": "{persona}"}, {}).build_system_prompt("a", {"wit": 0.0}, [])
