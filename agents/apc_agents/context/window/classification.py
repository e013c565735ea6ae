"""The class that a turn gets when it comes: by its role, and raised by what it says.

Source: docs/specification/agents.md section 4.
"""

import re
from typing import Final

from apc_agents.context.window.linearity import ResourceClass
from apc_agents.context.window.turns import TurnRole

CLASS_OF_ROLE: Final = {
    TurnRole.USER: ResourceClass.PRESERVED,
    TurnRole.SYSTEM: ResourceClass.REQUIRED,
    TurnRole.ASSISTANT: ResourceClass.DROPPABLE,
    TurnRole.TOOL: ResourceClass.DROPPABLE,
}
"""What a role gives. The first turn of a window is PRESERVED if it is a system turn: the initial system prompt."""

INITIAL_PROMPT: Final = "initial system prompt"
"""What the linearity map names as the source of that turn's class."""

CLASS_OF_MARKER: Final = {
    "constraint": ResourceClass.PRESERVED,
    "remember": ResourceClass.PRESERVED,
    "decision": ResourceClass.REQUIRED,
    "error": ResourceClass.REQUIRED,
    "important": ResourceClass.REQUIRED,
    "result": ResourceClass.REQUIRED,
}
"""Words that raise a class when a line begins with them and a colon follows, in any case: `Decision: …`.

The marks of Markdown may stand around them: of a list, heading or quotation, and of emphasis: `- **Decision:** …`.
"""

CLASS_OF_CODE: Final = ResourceClass.REQUIRED
"""What a fenced code block raises a turn to."""

_MARKED_LINE: Final = re.compile(
    rf"^[ \t>#*+_`-]*(?:\d{{1,3}}[.)][ \t]*)?[*_`]{{0,3}}({'|'.join(CLASS_OF_MARKER)})[ \t*_`]*:",
    re.IGNORECASE | re.MULTILINE,
)
_CODE_FENCE: Final = re.compile(r"^[ \t>]*(?:```|~~~)", re.MULTILINE)


def classify_by_role(role: TurnRole) -> ResourceClass:
    """Return the class that every turn of this role has at least."""
    return CLASS_OF_ROLE[role]


def classify_by_content(content: str) -> ResourceClass:
    """Return the highest class that a marker or a code block in the content asks for; DROPPABLE without one."""
    asked = [CLASS_OF_MARKER[word.lower()] for word in _MARKED_LINE.findall(content)]
    if _CODE_FENCE.search(content):
        asked.append(CLASS_OF_CODE)
    return max(asked, key=lambda one: one.value, default=ResourceClass.DROPPABLE)


def classify(role: TurnRole, content: str, *, is_first: bool) -> tuple[ResourceClass, str]:
    """Return the class of a new turn, and what decided it. Markers only raise."""
    if is_first and role is TurnRole.SYSTEM:
        return ResourceClass.PRESERVED, INITIAL_PROMPT
    by_role, by_content = classify_by_role(role), classify_by_content(content)
    return (by_content, "marker") if by_role < by_content else (by_role, f"role {role}")
