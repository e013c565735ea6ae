"""The agent's response: both versions are one model, and bad documents are refused with their place."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from apc_contracts import AgentResponse, Execution, ResponseInvalid, SecurityLevel, parse_response
from apc_contracts.agent import KNOWN_STATUSES, KNOWN_THOUGHTS, MAX_ACTIONS, MAX_SUB_LEVELS, ActionType
from apc_contracts.schema_export import agent_response_schema

FOLDER = Path(__file__).parent
SCHEMA = Draft202012Validator(agent_response_schema())

V1 = {
    "status": "SUCCESS",
    "thoughts": [{"type": "PLAN", "content": "read it"}],
    "actions": [
        {
            "action": "read",
            "type": "tool",
            "params": {"path": "a"},
            "execution": "SYNC",
            "confidence": 0.9,
            "warnings": ["slow"],
        }
    ],
    "stop": False,
    "response": None,
}


def example(name: str) -> bytes:
    return (FOLDER / f"{name}.json").read_bytes()


def parsed(document: dict[str, Any]) -> AgentResponse:
    return parse_response(json.dumps(document))


def nested(levels: int) -> dict[str, Any]:
    action: dict[str, Any] = {"action": "a", "type": "tool"}
    for _ in range(levels):
        action = {"action": "a", "type": "tool", "sub_actions": [action]}
    return action


def test_the_example_of_an_asynchronous_task_parses_as_it_stands() -> None:
    response = parse_response(example("asynchronous-task"))
    assert (response.status, response.version, response.stop) == ("TASK_STARTED", "2.0", True)
    assert [thought.type for thought in response.thoughts] == ["PLAN", "DECISION"]
    assert response.actions[0].execution is Execution.ASYNC
    assert response.actions[0].params == {"target": "//main:app", "config": "release"}
    assert response.response is not None
    assert response.response.endswith("a7b3c9d1-e4f6-4g8h-9i1j-k2l3m4n5o6p7")


def test_the_example_of_context_management_parses_as_it_stands() -> None:
    response = parse_response(example("context-management"))
    assert response.version == "2.0"
    assert response.context is not None
    assert response.context.knowledge_relics == ("relic_id_project_docs_v2",)
    assert response.context.security_level is SecurityLevel.USER
    assert response.actions[0].execution is Execution.SYNC
    assert (response.stop, response.response) == (False, None)


@pytest.mark.parametrize("name", ["asynchronous-task", "context-management"])
def test_the_examples_are_valid_under_the_exported_schema(name: str) -> None:
    SCHEMA.validate(json.loads(example(name)))


def test_a_document_of_the_first_version_has_every_field_of_it() -> None:
    response = parsed(V1)
    assert response.version == "1.0"
    written = json.loads(response.model_dump_json(exclude_unset=True))
    assert written == V1


def test_the_task_id_is_text() -> None:
    action = {
        "action": "build",
        "type": "tool",
        "execution": "ASYNC",
        "task_id": "a7b3c9d1-e4f6-4g8h-9i1j-k2l3m4n5o6p7",
    }
    response = parsed({**V1, "actions": [action]})
    assert response.actions[0].task_id == "a7b3c9d1-e4f6-4g8h-9i1j-k2l3m4n5o6p7"
    assert response.version == "2.0"


@given(st.text(min_size=1, max_size=50).filter(lambda text: "\0" not in text))
def test_unknown_statuses_and_thoughts_are_accepted_as_text(name: str) -> None:
    response = AgentResponse.model_validate(
        {"status": name, "thoughts": [{"type": name, "content": ""}], "stop": True},
    )
    assert (response.status, response.thoughts[0].type) == (name, name)
    assert AgentResponse.model_validate_json(response.model_dump_json()) == response


def test_what_the_schema_names_is_known() -> None:
    assert KNOWN_STATUSES == ("SUCCESS", "EXECUTING", "ERROR", "TASK_STARTED")
    assert KNOWN_THOUGHTS == ("PLAN", "OBSERVATION", "DECISION")
    assert [kind.value for kind in ActionType] == ["tool", "script", "internal"]
    assert [execution.value for execution in Execution] == ["SYNC", "ASYNC"]
    assert sorted(SecurityLevel, key=lambda level: level.rank) == list(SecurityLevel)


def test_a_response_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parsed(V1).stop = True  # type: ignore[misc]


def test_actions_are_walked_in_the_order_of_the_document() -> None:
    first = {"action": "a", "type": "tool", "sub_actions": [{"action": "b", "type": "tool"}, nested(1)]}
    response = parsed({**V1, "actions": [first, {"action": "c", "type": "tool"}]})
    assert [action.action for action in response.walk()] == ["a", "b", "a", "a", "c"]


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"status": ""}, "status", "at least 1"),
        ({"stop": "yes"}, "stop", "true or false"),
        ({"extra": 1}, "extra", "unknown field"),
        ({"actions": [{"action": "a"}]}, "actions[0].type", "missing"),
        ({"actions": [{"action": "a", "type": "shell"}]}, "actions[0].type", "'tool', 'script' or 'internal'"),
        ({"actions": [{"action": "a", "type": "tool", "params": []}]}, "actions[0].params", "object"),
        ({"actions": [{"action": "a", "type": "tool", "execution": "LATER"}]}, "actions[0].execution", "'ASYNC'"),
        ({"actions": [{"action": "a", "type": "tool", "context": {}}]}, "actions[0].context", "unknown field"),
        ({"actions": [{"action": "a", "type": "tool", "confidence": 2}]}, "actions[0].confidence", "less than"),
        ({"actions": [{"action": "a", "type": "tool", "action_id": "a.b"}]}, "actions[0].action_id", "pattern"),
        ({"actions": [nested(MAX_SUB_LEVELS + 1)]}, "actions", "flatten"),
        ({"actions": [nested(0)] * (MAX_ACTIONS + 1)}, "actions", "send fewer"),
        ({"context": {"security_level": "root"}}, "context.security_level", "'admin'"),
        ({"schema_version": "1.0", "context": {}}, "context", "schema 2.0"),
        ({"schema_version": "1.0", "status": "TASK_STARTED"}, "status", "schema 2.0"),
        (
            {"schema_version": "1.0", "actions": [{"action": "a", "type": "tool", "display": "b"}]},
            "actions[0].display",
            "schema 2.0",
        ),
    ],
)
def test_a_bad_document_is_refused_with_its_place(change: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(ResponseInvalid) as refused:
        parsed({**V1, **change})
    assert (refused.value.code, refused.value.path) == ("SCHEMA_INVALID", path)
    assert words in refused.value.message
    assert "metadata" not in refused.value.message, "an AgentResponse has none"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"Sure! I will compile it for you.", "MALFORMED"),
        (b"", "MALFORMED"),
        (b'{"status": "SUCCESS", "stop": true, "stop": false}', "MALFORMED"),
        (b'{"status": "SUCCESS", "stop": true, "response": "' + b"a" * 1_000_000 + b'"}', "TOO_LARGE"),
        (b"[" * 100 + b"]" * 100, "TOO_DEEP"),
    ],
)
def test_what_is_no_document_is_refused(body: bytes, code: str) -> None:
    with pytest.raises(ResponseInvalid) as refused:
        parse_response(body)
    assert refused.value.code == code


def test_a_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ResponseInvalid, match="MALFORMED"):
        parse_response('{"status": "\ud800", "stop": true}')
