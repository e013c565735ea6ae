"""When a packet is judged."""

from enum import StrEnum


class Stage(StrEnum):
    """On arrival; at RESUME, when a pause held it; at the barrier of its generation (TRANSFER)."""

    ARRIVAL = "arrival"
    RESUME = "resume"
    BARRIER = "barrier"
