"""The workshop of the actions, and what the tests of the SDK have: a gate before a worker, packets, ideas."""

import pytest
from tests.agents.conftest import idea, make_packet, make_stage
from tests.minds.workshop import Workshop

__all__ = ["idea", "make_packet", "make_stage"]


@pytest.fixture
def workshop() -> Workshop:
    """A fresh workshop."""
    return Workshop()
