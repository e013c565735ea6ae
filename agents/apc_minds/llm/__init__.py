"""Agents that ask a language model (docs/specification/agents.md section 6). Needs the extra `llm`; importing it
takes a second.

`LLMAgent` is an ordinary agent on the bus; `Dialogue` is a user's conversation with it; `Mind` is the loop of both.
"""

from apc_bus.settings import LLMSettings
from apc_minds.language_model import (
    AnswerInvalid,
    AnswerTooLong,
    LLMError,
    ModelAway,
    ModelRefused,
    ModelUnusable,
    RecordedModel,
    Recording,
    make_model,
)
from apc_minds.llm.agent import LLMAgent
from apc_minds.llm.dialogue import Dialogue, DialogueBusy, DialogueOutput, Props
from apc_minds.llm.mind import MessageExchange, Mind
from apc_minds.llm.prompting import Persona

__all__ = [
    "AnswerInvalid",
    "AnswerTooLong",
    "Dialogue",
    "DialogueBusy",
    "DialogueOutput",
    "LLMAgent",
    "LLMError",
    "LLMSettings",
    "MessageExchange",
    "Mind",
    "ModelAway",
    "ModelRefused",
    "ModelUnusable",
    "Persona",
    "Props",
    "RecordedModel",
    "Recording",
    "make_model",
]
