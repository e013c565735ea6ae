"""What the log shows of an exception that a handler let through."""

import traceback

import pytest

from apc_agents import AgentError
from apc_agents.handling import delivery_end
from apc_contracts.text import one_line


def failing(error: Exception) -> Exception:
    """Return an exception that went through this file and through the SDK."""
    try:
        try:
            one_line(error)  # type: ignore[arg-type]
        except Exception as inner:
            raise error.with_traceback(inner.__traceback__) from None
    except Exception as caught:
        return caught
    raise AssertionError


@pytest.mark.parametrize("error", [AgentError("told by the SDK"), ValueError("of the handler")], ids=["ours", "theirs"])
def test_an_error_of_the_sdk_shows_the_lines_of_the_handler_alone(error: Exception) -> None:
    failure = failing(error)
    shown = delivery_end._as_the_handler_sees_it(failure)
    if isinstance(failure, AgentError):
        kind, value, place = shown
        files = {frame.filename for frame in traceback.extract_tb(place)}
        assert (kind, value, files) == (AgentError, failure, {__file__})
    else:
        assert shown is failure, "where a handler's own code failed is told whole"


def test_an_error_that_no_code_of_a_handler_was_in_is_told_whole() -> None:
    failure = AgentError("made here, raised nowhere")
    assert delivery_end._as_the_handler_sees_it(failure) is failure
