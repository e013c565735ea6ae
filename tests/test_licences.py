"""The licences of what we ship with: each is one that we allow."""

from tests.support.licences import Licence, read_licences, unknown_licences


def test_every_dependency_has_a_licence_that_is_allowed() -> None:
    licences = read_licences()

    assert {"asyncpg", "aio-pika", "pydantic", "numpy", "greenlet"} <= {one.name for one in licences}
    assert unknown_licences(licences) == []


def test_another_licence_is_found() -> None:
    wrong = [Licence("a", "1", "AGPL-3.0-only"), Licence("b", "1", "MIT AND GPL-2.0"), Licence("c", "1", "")]

    assert unknown_licences([*wrong, Licence("d", "1", "Apache-2.0 AND (MIT OR BSD-3-Clause)")]) == wrong
