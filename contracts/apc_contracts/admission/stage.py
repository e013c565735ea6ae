"""When a packet is judged."""

from enum import StrEnum


class Stage(StrEnum):
    """When a packet is judged: on arrival; at RESUME, if a pause held it; at its barrier (TRANSFER)."""

    ARRIVAL = "arrival"
    RESUME = "resume"
    BARRIER = "barrier"
