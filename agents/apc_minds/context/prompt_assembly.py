"""Assembles prompts from templates, persona and constraints, and marks foreign text in them. Prompts never leave the
server.

Source: docs/reference/conformance/context-engineering.md, section 3.3.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from string import Formatter
from typing import Final, Self

from pydantic import JsonValue

from apc_minds.context.turns import PromptInvalid

TEMPLATES: Final = Path(__file__).parent / "templates"
DEFAULT_PERSONA: Final = "default"
"""The persona template of a coordinate that has none."""
_PERSONA_FIELDS: Final = frozenset({"name", "degree", "value"})
_DEGREES: Final = ((0.2, "very low"), (0.4, "low"), (0.6, "balanced"), (0.8, "high"), (1.0, "very high"))
"""Upper bounds of a coordinate in 0..1, and what it is called."""


class PromptBuilder:
    """Assembles complete prompts. The frontend never sees them, only the rendered output.

    A system template has the fields {persona} and {constraints}, and others that the caller fills; a
    persona template has {name}, {degree} and {value}. What is filled in is text and never read as a template.
    """

    system_templates: dict[str, str]
    """By agent type."""
    persona_templates: dict[str, str]
    """By the name of a coordinate."""

    def __init__(self, system_templates: Mapping[str, str], persona_templates: Mapping[str, str]) -> None:
        """Take templates by agent type, and by the name of a coordinate.

        Raises:
            PromptInvalid: a template that cannot be read, or that has a field it may not have.
        """
        self.system_templates = dict(system_templates)
        self.persona_templates = dict(persona_templates)
        self._fields = {name: _fields(f"system/{name}", text) for name, text in self.system_templates.items()}
        for name, text in self.persona_templates.items():
            strange = _fields(f"persona/{name}", text) - _PERSONA_FIELDS
            if strange:
                raise PromptInvalid(f"persona/{name}", f"unknown field {min(strange)}: give name, degree, value")

    @classmethod
    def load(cls, folder: Path = TEMPLATES) -> Self:
        """Return the templates `system/*.txt` and `persona/*.txt` of a folder. Raises PromptInvalid."""
        return cls(_read(folder / "system"), _read(folder / "persona"))

    def build_system_prompt(
        self,
        agent_type: str,
        eigenvectors: Mapping[str, float],
        constraints: Sequence[str],
        **details: str,
    ) -> str:
        """Build the complete system prompt.

        Args:
            agent_type: a system template's name: "assistant", "builder", "kgent", "citizen".
            eigenvectors: personality coordinates by name, each in 0..1.
            constraints: what the user demands, one sentence each.
            details: the template's other fields, such as specialty and task.

        Raises:
            PromptInvalid: an unknown agent type, a coordinate outside 0..1, a detail missing or unknown.
        """
        template = self.system_templates.get(agent_type)
        if template is None:
            raise PromptInvalid("agent_type", f"no template {agent_type!r}: give {', '.join(self.system_templates)}")
        own = self._fields[agent_type] - {"persona", "constraints"}
        for name in own ^ details.keys():
            problem = "is missing" if name in own else "is no field of the template"
            raise PromptInvalid(name, f"{problem}: {agent_type} takes {', '.join(sorted(own)) or 'no details'}")
        sections = {
            "persona": self._render_persona(eigenvectors),
            "constraints": self._render_constraints(constraints),
        }
        return template.format(**sections, **details).strip()

    def _render_persona(self, eigenvectors: Mapping[str, float]) -> str:
        """Return a line for each coordinate of the persona; empty without any."""
        lines = [self._coordinate(name, value) for name, value in sorted(eigenvectors.items())]
        return "\n".join(["Your persona:", *lines]) if lines else ""

    def _coordinate(self, name: str, value: float) -> str:
        if type(value) not in (int, float) or not isfinite(value) or not 0 <= value <= 1:
            raise PromptInvalid(f"eigenvectors.{name}", f"{value!r} is no number in 0..1: give one")
        template = self.persona_templates.get(name) or self.persona_templates.get(DEFAULT_PERSONA)
        if template is None:
            raise PromptInvalid(f"eigenvectors.{name}", f"no template persona/{name} and no persona/{DEFAULT_PERSONA}")
        degree = next(word for bound, word in _DEGREES if value <= bound)
        return template.format(name=name, degree=degree, value=f"{value:.2f}").strip()

    def _render_constraints(self, constraints: Sequence[str]) -> str:
        """Return a line for each constraint; empty without any."""
        lines = [f"- {' '.join(constraint.split())}" for constraint in constraints]
        return "\n".join(["You must keep to this:", *lines]) if lines else ""


@cache
def default_prompts() -> PromptBuilder:
    """Return the templates that come with the package."""
    return PromptBuilder.load()


def _read(folder: Path) -> dict[str, str]:
    templates = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))}
    if not templates:
        raise PromptInvalid(str(folder), "no templates: put *.txt files there")
    return templates


def _fields(place: str, template: str) -> frozenset[str]:
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise PromptInvalid(place, f"{error}: write {{{{ and }}}} for braces") from error
    for name in names:
        if not name.isidentifier():
            raise PromptInvalid(place, f"field {{{name}}} is no plain name: write {{{{ and }}}} for braces")
    return frozenset(names)


# Marks foreign text in a prompt as data: between two lines with a token that nobody could know who wrote the text.
#
# Foreign are the packets of other agents, what tools and tasks gave, and what was remembered of either. It is never
# part of the instructions and never a system turn.

SOURCE: Final = "source"
"""Metadata of a turn whose text is foreign: an object that says where it comes from."""
TOOL_SOURCE: Final[Mapping[str, JsonValue]] = {"from": "tools"}
LEVEL: Final = "level"
"""Metadata of a turn: the highest level at which a response may act that has seen it."""
