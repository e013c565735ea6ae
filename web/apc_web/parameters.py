"""Parameters that several routes take."""

from typing import Annotated, Literal

from fastapi import Path, Query

_NAME = r"^[^\x00]{1,256}$"
_PACKET = r"^([0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9]{1,9}-[0-9]{1,18})$"
_CODE = r"^[A-Z_]{1,64}$"

SessionName = Annotated[str, Path(pattern=_NAME, description="A session.")]
PacketName = Annotated[
    str, Path(pattern=_PACKET, description="A packet_id, or SHARD-SEQ: the position of a packet in the log.")
]
InSession = Annotated[str | None, Query(alias="session", pattern=_NAME, description="The packet's session.")]
OfRun = Annotated[str | None, Query(pattern=_NAME, description="Only of this run.")]
OfSession = Annotated[str | None, Query(pattern=_NAME, description="Only of this session.")]
OfTask = Annotated[str | None, Query(pattern=_NAME, description="Only of this task.")]
OfAgent = Annotated[str | None, Query(pattern=_NAME, description="Only of this agent.")]
Code = Annotated[str | None, Query(pattern=_CODE, description="Only with this code.")]
After = Annotated[str | None, Query(max_length=2_000, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=500, description="At most this many.")]
Order = Annotated[Literal["oldest", "newest"], Query(description="Which end of the log comes first.")]

__all__ = [
    "After",
    "Code",
    "InSession",
    "Limit",
    "OfAgent",
    "OfRun",
    "OfSession",
    "OfTask",
    "Order",
    "PacketName",
    "SessionName",
]
