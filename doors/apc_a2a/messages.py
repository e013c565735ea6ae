"""What a team sees of A2A: the models of messages as they are, and how a message becomes a team's input or an answer.

No word of the protocol's library is needed here: messages are JSON as A2A 1.0 writes it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, JsonValue, ValidationError

from apc_agents.team import Team
from apc_agents.typed import message
from apc_contracts.errors import InputUnusable

Json = Mapping[str, JsonValue]


@message("a2a-message/1")
class A2AMessage(BaseModel):
    """The input of a team that takes messages as they are.

    ```python
    from apc_a2a import A2AMessage, A2AReply


    @desk.on(A2AMessage)
    async def reply(said: A2AMessage, ctx: HandlerContext) -> A2AReply:
        return A2AReply(parts=[{"text": f"{len(said.parts)} parts"}])


    team = Team("support", agents=[desk], entry="desk", input=A2AMessage)
    ```

    Attributes:
        message_id: the client's name of the message.
        parts: JSON objects with `text`, `data` or `url`. In place of `raw` bytes a part has `artifact`, the SHA-256
            under which the artifact store keeps them, and `size` in bytes.
    """

    message_id: str
    parts: list[dict[str, JsonValue]]


@message("a2a-artifact/1")
class A2AArtifact(BaseModel):
    """A part of the output that the client sees while the team works: `ctx.emit(A2AArtifact(...), to=SUBSTRATE)`.

    ```python
    from apc_a2a import A2AArtifact

    first = A2AArtifact(artifact_id="story", parts=[{"text": "Once upon "}], last=False)
    rest = A2AArtifact(artifact_id="story", parts=[{"text": "a time."}], append=True)
    ```

    Attributes:
        artifact_id: names it within the task.
        parts: JSON objects with `text`, `data`, `url` or `raw` (Base64), and `mediaType` and `filename` if known.
        append: whether the parts follow those that it has.
        last: whether no more parts follow.
    """

    artifact_id: str
    parts: list[dict[str, JsonValue]]
    append: bool = False
    last: bool = True


@message("a2a-reply/1")
class A2AReply(BaseModel):
    """The end of a task, in the team's own words.

    ```python
    from apc_a2a import A2AReply

    no = A2AReply(parts=[{"text": "We sell no elephants."}], rejected=True)
    ```

    Attributes:
        parts: as those of A2AArtifact.
        rejected: whether the task ends as REJECTED and not as COMPLETED.
        as_message: answer a message with a message in place of a task.
    """

    parts: list[dict[str, JsonValue]] = Field(default_factory=list)
    rejected: bool = False
    as_message: bool = False


def texts_of(parts: Sequence[Json]) -> str:
    """Return the text parts of a message, a line each."""
    return "\n".join(text for one in parts if isinstance(text := one.get("text"), str))


def data_of(parts: Sequence[Json]) -> JsonValue:
    """Return the content of the first data part; None without one."""
    return next((one["data"] for one in parts if "data" in one), None)


def input_of(team: Team, message_id: str, parts: Sequence[Json]) -> BaseModel:
    """Return the team's input: the message as it is, its data part, or its text.

    A text is read as JSON, or fills the one required text field of the model.

    Raises:
        InputUnusable: it does not fit; names the fields.
    """
    model = team.input
    if model is None:
        raise InputUnusable(f"team {team.name} takes several inputs and names none: give it one, `Team(input=…)`")
    if model is A2AMessage:
        return A2AMessage(message_id=message_id, parts=[dict(one) for one in parts])
    data, text = data_of(parts), texts_of(parts)
    try:
        return model.model_validate(data) if data is not None else _from_text(model, text)
    except ValidationError as error:
        raise InputUnusable(f"the message does not fit the input of this agent: {_places(error)}") from error


def _from_text(model: type[BaseModel], text: str) -> BaseModel:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        required = [name for name, field in model.model_fields.items() if field.is_required()]
        if len(required) == 1 and model.model_fields[required[0]].annotation is str:
            return model.model_validate({model.model_fields[required[0]].alias or required[0]: text})
        raise


def _places(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'message'}: {one['msg']}" for one in found[:10])


# An answer to a question. A text that says neither yes nor no does not approve.

_YES = re.compile(r"\s*(yes|y|ok|okay|approve|approved|go|confirm|confirmed)\b", re.IGNORECASE)
_NO = re.compile(r"\s*(no|n|deny|denied|reject|rejected|cancel)\b", re.IGNORECASE)
LONGEST_NOTE = 8_192
"""Characters."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a message says to a question; `content` = the fields that it asks for."""

    approved: bool
    note: str | None
    content: dict[str, Any] | None = None


def answer_of(schema: Mapping[str, Any] | None, parts: Sequence[Json]) -> Said:
    """Return what a message answers.

    A question for an approval takes `{"approved": true, "note": …}` as data, or a text, which approves only when it
    begins with yes. A question for fields takes them as data; a text fills its one required text field, and a text that
    begins with no denies.

    Args:
        schema: JSON Schema of the fields that are asked for; None = only an approval is.
        parts: of the message.

    Raises:
        InputUnusable: it is no answer to this question; says what would be.
    """
    data, text = data_of(parts), texts_of(parts)
    note = text[:LONGEST_NOTE] or None
    if schema is None:
        if isinstance(data, dict):
            approved, said = data.get("approved"), data.get("note")
            if not isinstance(approved, bool) or not isinstance(said, str | None):
                raise InputUnusable('the answer needs data like {"approved": true, "note": "why"}')
            return Said(approved, said or note)
        return Said(bool(_YES.match(text)), note)
    if isinstance(data, dict):
        return Said(True, note, data)
    if _NO.match(text):
        return Said(False, note)
    required, fields = schema.get("required", []), schema.get("properties", {})
    if text and len(required) == 1 and fields.get(required[0], {}).get("type") == "string":
        return Said(True, None, {required[0]: text})
    raise InputUnusable(f"the answer needs a data part with {', '.join(required) or 'the fields of the question'}")
