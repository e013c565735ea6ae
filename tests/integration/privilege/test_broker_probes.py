"""The probe matrix (docs/specification/architecture.md section 9): who may do what at a broker with the exported
definitions.
"""

import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from time import monotonic

import aio_pika
import pytest
from tests.integration.privilege.broker_probes import ALPHA, BETA, acts, is_allowed, may_open
from tests.integration.privilege.conftest import GuardedBroker
from tests.integration.privilege.documented import check_table

from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import agent_queue, gate_queue

USERS = ("orchestrator", "persister", "operator", "web", "door", ALPHA, BETA, "topology")
TO_THE_GATE = {
    f"publish to apc.{name}{how}" for name in ("ingress", "receipts") for how in ("", " with CC", " with BCC")
}
PACKETS = 24
"""That an agent sends as it may, when everything else was tried."""
EVERYBODY = {
    "ask how many messages apc.agent.beta.normal has (passive declare)",
    "ask how many messages apc.gate.0 has (passive declare)",
}
UNSIGNED = "publish to apc.ingress without a user_id"
FORGED = "publish to apc.ingress with the user_id of another"
ELSEWHERE, MANAGEMENT = "open another virtual host", "use the management API"
Seen = dict[str, set[str]]
"""Act -> the users who were let."""


def reading(*queues: str) -> set[str]:
    verbs = ("consume", "purge", "get from")
    # A queue with a single active consumer has no get, for anybody.
    return {f"{verb} {queue}" for queue in queues for verb in (verbs[:2] if queue.endswith(".0") else verbs)}


def allowed_to_agent(name: str, *intra: str) -> set[str]:
    own = {f"publish to apc.intra.{name}{how}" for how in intra}
    inbox = reading(f"apc.agent.{name}.urgent", f"apc.agent.{name}.normal")
    return EVERYBODY | TO_THE_GATE | {UNSIGNED, "consume apc.substrate.stream"} | own | inbox


RECEIPTS = {act for act in TO_THE_GATE if "receipts" in act}
EXPECTED: Seen = {
    "orchestrator": EVERYBODY
    | RECEIPTS
    | {f"publish to apc.{name}" for name in ("inter_agent", "substrate", "log", "retry")}
    | reading("apc.gate.0", "apc.dead.letters"),
    "persister": EVERYBODY | reading("apc.log.0"),
    "operator": EVERYBODY | TO_THE_GATE | {UNSIGNED},
    "web": EVERYBODY | TO_THE_GATE | {UNSIGNED},
    "door": EVERYBODY | (TO_THE_GATE - RECEIPTS) | {UNSIGNED},
    ALPHA: allowed_to_agent("alpha", "", " with CC", " with BCC"),
    BETA: allowed_to_agent("beta", ""),
}


@pytest.mark.broker
async def test_every_forbidden_act_is_refused(guarded_broker: GuardedBroker, exercised: Callable[..., None]) -> None:
    """Matrix row 32."""
    names = [*(act.name for act in acts(guarded_broker.topology)), ELSEWHERE, MANAGEMENT]
    seen: Seen = {name: set() for name in names}
    for user in USERS:
        await probe(guarded_broker, user, seen)
        if user == ALPHA:  # before anybody who may read there
            assert await senders_to_beta(guarded_broker) == {"orchestrator"}
    await apply_rabbit(guarded_broker.url("topology"), guarded_broker.topology)
    rows = [[act, *("allowed" if user in let else "refused" for user in USERS)] for act, let in seen.items()]
    began = monotonic()
    stored = await send_within_its_rights(guarded_broker)
    exercised(
        "acts beyond a user's rights, each refused",
        packets=PACKETS,
        injected=sum(answers.count("refused") for _, *answers in rows),
        lost=max(0, PACKETS - stored),
        doubled=max(0, stored - PACKETS),
        recovery_seconds=monotonic() - began,
    )
    assert stored == PACKETS
    print(f"\n{len(rows)} acts, {len(rows) * len(USERS)} probes")
    for act, *answers in rows:
        print(f"{act:72s} {' '.join(f'{answer:8s}' for answer in answers)}")
    for user, expected in EXPECTED.items():
        assert {act for act, let in seen.items() if user in let} == expected, user
    assert {act for act, let in seen.items() if "topology" not in let} == {FORGED, ELSEWHERE, MANAGEMENT}
    check_table("broker probes", ["act", *USERS], rows)


async def probe(broker: GuardedBroker, user: str, seen: Seen) -> None:
    """Try every act as one user."""
    async with await aio_pika.connect(broker.url(user)) as connection:
        for act in acts(broker.topology):
            if await is_allowed(connection, user, act):
                seen[act.name].add(user)
    if await may_open(broker.url(user, "elsewhere")):
        seen[ELSEWHERE].add(user)
    if may_manage(broker, user):
        seen[MANAGEMENT].add(user)


async def send_within_its_rights(broker: GuardedBroker) -> int:
    """After all of it alpha's packets still come to the gate; how many of them wait there."""
    async with (
        await aio_pika.connect(broker.url("topology")) as connection,
        connection.channel() as at_the_gate,
        await aio_pika.connect(broker.url(ALPHA)) as own,
        own.channel(on_return_raises=True) as channel,
    ):
        await (await at_the_gate.get_queue(gate_queue(0))).purge()
        ingress = await channel.get_exchange("apc.ingress", ensure=False)
        for _ in range(PACKETS):
            await ingress.publish(aio_pika.Message(b"{}", user_id=ALPHA), "0")
        return (await at_the_gate.get_queue(gate_queue(0))).declaration_result.message_count or 0


def may_manage(broker: GuardedBroker, user: str) -> bool:
    """Return whether the management API answers a user."""
    request = urllib.request.Request(f"http://127.0.0.1:{broker.management_port}/api/overview")
    request.add_header("Authorization", f"Basic {b64encode(f'{user}:{broker.passwords[user]}'.encode()).decode()}")
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        assert error.code == 401, error
        error.close()
        return False
    return True


async def senders_to_beta(broker: GuardedBroker) -> set[str | None]:
    """Return who has written into the inbox of beta; it is empty then. No copy by CC or BCC may be among it."""
    senders = set()
    async with await aio_pika.connect(broker.url("topology")) as connection, connection.channel() as channel:
        for urgent in (True, False):
            queue = await channel.get_queue(agent_queue("beta", urgent))
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                senders.add(message.user_id)
    return senders
