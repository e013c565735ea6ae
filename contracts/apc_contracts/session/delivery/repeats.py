"""What a repeat does: deliveries of the packet that may still be missing are sent again, and no others.

A delivery that the broker has confirmed is in the inbox until it ends: another one would only fill the inbox. This is
the gate's memory of one epoch and not part of the log; a new lease holder delivers again.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from apc_contracts.session.session import OpenPacket, Progress, Session
from apc_contracts.vocabulary import SUBSTRATE_RECIPIENT


def confirm_delivery(opened: OpenPacket, recipient: str, attempt: int) -> None:
    """Note that the broker has confirmed this delivery."""
    progress = opened.recipients.get(recipient)
    if progress is not None and progress.attempt == attempt:
        progress.confirmed = attempt


def confirm_all(session: Session) -> None:
    """Note that every delivery of the session that is in flight was confirmed before."""
    for opened in session.open.values():
        for progress in opened.recipients.values():
            progress.confirmed = progress.attempt


def deliveries_to_repeat(opened: OpenPacket, now: datetime, interval: timedelta) -> Iterator[tuple[str, Progress]]:
    """Yield the recipients that a repeat is delivered to: open, not confirmed, and once per interval."""
    for recipient, progress in opened.recipients.items():
        is_missing = progress.is_open and progress.confirmed != progress.attempt and recipient != SUBSTRATE_RECIPIENT
        if not is_missing or (progress.repeated_at is not None and now - progress.repeated_at < interval):
            continue
        progress.repeated_at = now
        yield recipient, progress
