"""Acknowledgements and refusals that travel with the next write, or a moment later by themselves.

A separate write for each acknowledgement is what a small batch costs most: a system call here, one at the broker, and
two processes woken (measured: a third of the gate's CPU in a round trip). What is not sent yet when a process dies
comes again, as it may at any time. Nor do they queue for each write: a consumer that refused one delivery after
another would leave no room in the queue of writes, and the connection would die of heartbeats that cannot be sent.
"""

import asyncio

import pamqp.frame
from aiormq.abc import ChannelFrame
from pamqp.commands import Basic

from apc_bus.rabbit.channel import BulkChannel

DELAY_SECONDS = 0.01
PART_OF_PREFETCH = 4
"""When a quarter of what the broker may hand over is acknowledged, it is told at once: it must not run dry."""


class AckBuffer:
    """Those of one consumer, which is alone on its channel."""

    def __init__(self, channel: BulkChannel, prefetch: int) -> None:
        self._channel = channel
        self._most = max(1, prefetch // PART_OF_PREFETCH)
        self._all_up_to = 0
        self._sent_up_to = 0
        self._single: list[Basic.Ack | Basic.Nack] = []
        self._timer: asyncio.TimerHandle | None = None
        channel.before_write = self.take

    def add(self, tag: int, *, multiple: bool) -> None:
        """Acknowledge a delivery, or all up to it; the broker hears of it within DELAY_SECONDS."""
        if multiple:
            self._all_up_to = max(self._all_up_to, tag)
        else:
            self._single.append(Basic.Ack(tag))
        self._plan()

    def refuse(self, tag: int, *, requeue: bool) -> None:
        """Give a delivery back, or to the dead-letter exchange; the broker hears of it as of an acknowledgement."""
        self._single.append(Basic.Nack(tag, requeue=requeue))
        self._plan()

    def _plan(self) -> None:
        if self._all_up_to - self._sent_up_to + len(self._single) >= self._most:
            self.send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_SECONDS, self.send)

    def take(self) -> bytes:
        """Return the frames of everything that is not sent yet, for a write that begins with them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        acknowledgements, self._single = self._single, []
        if self._all_up_to > self._sent_up_to:
            acknowledgements.append(Basic.Ack(self._all_up_to, True))
        self._sent_up_to = self._all_up_to
        return b"".join(pamqp.frame.marshal(one, self._channel.number) for one in acknowledgements)

    def send(self) -> None:
        """Send everything now, or as soon as the connection takes it."""
        if self._channel.write_queue.full():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(DELAY_SECONDS, self.send)
        elif (frames := self.take()) and not self._channel.is_closed:
            self._channel.write_queue.put_nowait(ChannelFrame(frames, should_close=False))

    def finish(self) -> None:
        """Send what is not sent yet, if the connection takes it now; nothing later, when the channel closes."""
        if self._channel.write_queue.full():
            self.take()  # dropped: it comes again
        self.send()
