"""The agents of the fault tests: those of every test, and one that is away."""

from tests.support.traffic import AGENTS, Cast

POISON = "poison"
"""What a packet intends that every worker rejects."""
AWAY = "sleeper"
"""Has an inbox, and looks into it when a test lets it come back: what is sent to it expires."""
CAST: Cast = {**AGENTS, AWAY: ("watch", ())}
