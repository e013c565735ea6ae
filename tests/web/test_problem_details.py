"""What a caller is told of an error of the database."""

import asyncpg
import pytest

from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import DatabasePartAway
from apc_web.problems import error_of


@pytest.mark.parametrize("kind", DATABASE_AWAY)
def test_each_way_in_which_a_database_is_away_is_told_as_one(kind: type[Exception]) -> None:
    problem = error_of(DatabasePartAway(["east"], [1], "gone") if kind is DatabasePartAway else kind("gone"))

    assert (problem.status, problem.code) == (503, "DATABASE_AWAY")


def test_a_request_that_took_too_long_is_no_lost_database() -> None:
    assert error_of(asyncpg.QueryCanceledError("late")).code == "TOO_SLOW"
