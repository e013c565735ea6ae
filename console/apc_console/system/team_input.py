"""The input of a team as a file has it, and its result as commands print it."""

from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from apc_agents.team import Team
from apc_console.errors import InputUnusable
from apc_contracts.payloads.measurements import Result


def read_input(team: Team, body: bytes) -> BaseModel:
    """Return the input of a session. Raises InputUnusable with the field's place."""
    if team.input is None:
        raise InputUnusable(f"team {team.name} does not say its input: give Team(..., input=Model)")
    try:
        return team.input.model_validate(orjson.loads(body), by_alias=True)
    except orjson.JSONDecodeError as error:
        raise InputUnusable(f"the input is no JSON: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "$"
        raise InputUnusable(f"the input is no {team.input.__name__}: {place}: {first['msg']}") from error


def result_document(found: Result | None) -> dict[str, Any] | None:
    """Return a result as the commands print it; None when the DONE carried none."""
    return None if found is None else {"schema": found.schema_id, "content": dict(found.content)}
