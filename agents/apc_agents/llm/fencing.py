"""Marks foreign text in a prompt as data: between two lines with a token that nobody could know who wrote the text.

Foreign are the packets of other agents, what tools and tasks gave, and what was remembered of either. It is never part
of the instructions and never a system turn.
"""

from collections.abc import Mapping
from secrets import token_hex
from typing import Final

import orjson
from pydantic import JsonValue

from apc_agents.context import Turn, TurnRole

SOURCE: Final = "source"
"""Metadata of a turn whose text is foreign: an object that says where it comes from."""
TOOL_SOURCE: Final[Mapping[str, JsonValue]] = {"from": "tools"}


def new_fence() -> str:
    """Return a token for one message: 128 random bits in hex."""
    return token_hex(16)


def fenced(text: str, fence: str, source: Mapping[str, JsonValue]) -> str:
    """Return the text as data of this source; the token itself is cut out of it."""
    while fence in text:
        text = text.replace(fence, "")
    told = orjson.dumps(dict(source)).decode().replace(fence, "")
    return f"<<data {fence} {told}>>\n{text}\n<<end {fence}>>"


def source_of(turn: Turn) -> Mapping[str, JsonValue] | None:
    """Return where a turn's text comes from; None for what the user, the operator or the model itself has said."""
    told = turn.metadata.get(SOURCE)
    if isinstance(told, Mapping):
        return told
    return TOOL_SOURCE if turn.role is TurnRole.TOOL else None
