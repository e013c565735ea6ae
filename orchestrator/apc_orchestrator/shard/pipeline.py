"""The stages of a judged batch: it is logged, then delivered, then its inputs are acknowledged."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, perf_counter

from apc_bus.concurrency import cancelled, failure_of
from apc_bus.crash_points import crash_point
from apc_bus.errors import BusError, PublishNotTaken, PublishRefused, PublishUnknown, PublishUnroutable
from apc_bus.port import Bus, Delivery, Publication, Subscription
from apc_bus.telemetry import get_logger
from apc_bus.topology import HOST_MAX_MESSAGES, agent_queue, host_queue_of_key, inbox_capacity
from apc_contracts.session.receipts import OVERFLOW
from apc_orchestrator import publications
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.errors import ShardLost
from apc_orchestrator.judging.refusals import flood_entry
from apc_orchestrator.shard.intake import InputIntake, ShardResources
from apc_orchestrator.telemetry import end_spans, logged, tell_judged

# Send what a batch decided, once its log batch is confirmed; then acknowledge its inputs.

PAUSE_SECONDS = 0.2
LEADER_SECONDS = 10.0
"""How long a queue may refuse everything without being full: electing a leader takes less."""
NO_ROUTE = "no_route"

_log = get_logger("apc_orchestrator")

Report = Callable[[Outgoing, str | None], None]
"""Called for each delivery that was confirmed (None) or that the broker refused (the reason)."""


async def send(bus: Bus, outgoing: Sequence[Outgoing], report: Report, stop: asyncio.Event, bound: int) -> None:
    """Publish until every delivery is confirmed or refused. Unknown outcomes are published again: ids make that safe.

    `bound`: the open deliveries that a recipient may have; its inbox is sized by it.

    Raises:
        ShardLost: `stop` was set while the broker did not confirm: the inputs stay unacknowledged, and the next lease
    holder delivers again.
    """
    todo = list(outgoing)
    began = monotonic()
    while todo:
        results = await bus.publish_all([sending.publication for sending in todo])
        unheard = {
            sending.recipient: sending.publication.routing_key
            for sending, error in zip(todo, results, strict=True)
            if isinstance(error, PublishNotTaken)
        }
        is_late = monotonic() - began > LEADER_SECONDS
        full = set(unheard) if is_late else await _full_inboxes(bus, unheard, bound)
        again = []
        for sending, error in zip(todo, results, strict=True):
            if error is None:
                report(sending, None)
            elif isinstance(error, PublishNotTaken) and sending.recipient not in full:
                again.append(sending)
            elif isinstance(error, PublishRefused | PublishUnroutable):
                report(sending, OVERFLOW if isinstance(error, PublishRefused) else NO_ROUTE)
            else:
                again.append(sending)
        if again:
            _log.warning("deliveries_unconfirmed", count=len(again), reason=_why(results))
            if stop.is_set():
                raise ShardLost(f"stopped with {len(again)} deliveries unconfirmed")
            await asyncio.sleep(PAUSE_SECONDS)
        todo = again


async def _full_inboxes(bus: Bus, refused: Mapping[str, str], bound: int) -> set[str]:
    """Return which recipients have a full inbox, of those whose queues have not been checked yet.

    Deliveries to the others are sent again. `refused`: recipient -> routing key of a delivery.
    """
    full = set()
    for recipient, key in refused.items():
        shared = host_queue_of_key(key)
        own = [agent_queue(recipient, urgent) for urgent in (True, False)]
        try:
            depths = [(await bus.depth(queue)).messages for queue in ([shared] if shared else own)]
        except BusError:
            continue
        if max(depths) >= (HOST_MAX_MESSAGES if shared else inbox_capacity(bound)):
            full.add(recipient)
    return full


async def acknowledge(inputs: Subscription, done: Sequence[Delivery], *, multiple: bool) -> None:
    """Acknowledge the inputs at once; one by one while earlier inputs still wait."""
    if not done:
        return
    if multiple:
        await inputs.ack(done[-1], multiple=True)
        return
    for delivery in done:
        await inputs.ack(delivery)


def _why(results: Sequence[BusError | None]) -> str:
    return next((str(error) for error in results if isinstance(error, PublishUnknown | PublishNotTaken)), "unknown")


RETRY_SECONDS = 0.5


class Pipeline:
    """One log batch in flight. The deliveries of a batch go out while the next one is judged, in the same order."""

    def __init__(self, resources: ShardResources, intake: InputIntake, report: Report, stop: asyncio.Event) -> None:
        self._resources = resources
        self._intake = intake
        self._report = report
        self._stop = stop
        self._next_number = 1
        self._sending: asyncio.Future[None] | None = None

    @property
    def next_number(self) -> int:
        """The number of the next batch in this epoch."""
        return self._next_number

    @property
    def batches(self) -> int:
        """Number of batches that the broker has confirmed in this lease."""
        return self._next_number - 1

    @property
    def last_sent(self) -> int:
        """The last batch whose deliveries the broker has confirmed."""
        is_sending = self._sending is not None and not self._sending.done()
        return self.batches - 1 if is_sending else self.batches

    async def log(self, batch: Batch) -> float | None:
        """Publish the log batch; return the seconds until its confirm, or None when there was nothing to log.

        Raises:
            ShardLost: the broker did not confirm it, or stays silent.
        """
        batch.entries += [flood_entry(user, flood) for user, flood in batch.floods.items()]
        if not batch.entries:
            return None
        lease = self._resources.lease
        with logged(batch, lease.shard, lease.epoch) as trace:
            publication = publications.log_batch(batch.seal(lease.shard, lease.epoch), lease, trace)
            began = perf_counter()
            await self._publish(publication)
            confirm_seconds = perf_counter() - began
        self._next_number += 1
        crash_point("gate.after_log_confirm")
        tell_judged(batch.entries)
        return confirm_seconds

    async def send(self, batch: Batch, done: Sequence[Delivery], *, is_everything: bool) -> None:
        """Deliver and acknowledge in the background, once the previous batch is through.

        `is_everything`: no earlier input still waits, so that one acknowledgement covers them all.
        """
        await self.finish_sending()
        self._sending = asyncio.ensure_future(self._send(batch, done, is_everything))
        self._sending.add_done_callback(self._note_sent)

    async def deliver(self, batch: Batch) -> None:
        """Send the batch's deliveries and wait for their confirms."""
        bound = self._resources.contract.limits.outstanding_deliveries
        await send(self._resources.bus, batch.outgoing, self._report, self._stop, bound)

    async def finish_sending(self) -> None:
        """Wait for the batch that is being sent. Raises what its sending raised."""
        if self._sending is not None:
            current, self._sending = self._sending, None
            await current

    async def close(self) -> None:
        """Stop sending."""
        if self._sending is not None:
            await cancelled(self._sending)

    async def _publish(self, publication: Publication) -> None:
        """Publish the log batch until it is confirmed.

        A refusal is definite, so the same batch is published again; any other failure loses the shard.
        """
        while True:
            self._intake.check_silence()
            try:
                return await self._resources.inputs.publish(publication)
            except (PublishRefused, PublishUnroutable) as error:
                _log.warning("log_batch_refused", reason=str(error))
                if self._stop.is_set():
                    raise ShardLost("stopped while the broker refused the log batch") from error
                await asyncio.sleep(RETRY_SECONDS)

    async def _send(self, batch: Batch, done: Sequence[Delivery], is_everything: bool) -> None:
        await self.deliver(batch)
        end_spans(batch)
        if batch.outgoing:
            crash_point("gate.after_delivery")
        crash_point("gate.after_delivery_confirm")
        crash_point("gate.before_acknowledge")
        await acknowledge(self._resources.inputs, done, multiple=is_everything)

    def _note_sent(self, sent: "asyncio.Future[None]") -> None:
        """Report a failure at once, without waiting for the next input."""
        if failure_of(sent) is not None:
            self._intake.wake()
