"""The recorded traffic, altered at random: packets of apc/1.0 that are refused for every reason, and those that follow.

Nothing of the product is imported: the same steps are made for any commit. The same number gives the same lease.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

Step = dict[str, Any]
Place = tuple[Any, str | int]
PACKETS = (
    "TASK_IR",
    "IDEA",
    "CLAIM",
    "EVAL",
    "TRANSFER",
    "ARTIFACT",
    "RETRACTION",
    "DECISION",
    "SIGNAL",
    "HEARTBEAT",
    "ACK",
)
VALUES: tuple[Any, ...] = (
    None,
    "",
    " ",
    "x",
    "apc/9.9",
    "EXECUTION",
    "KNOWLEDGE_TRANSFER",
    0,
    -1,
    1,
    2**31,
    0.5,
    1.5,
    True,
    [],
    {},
    ["x"],
    [None],
    "é" * 300,
)
SHARES = (0.02, 0.1, 0.4)
MINUTES = (-10_000, -30, -5, -1, 1, 5, 30, 10_000)


def is_packet(step: Step) -> bool:
    return step["op"] == "take" and step["message"]["type"] in PACKETS


def altered(steps: list[Step], number: int) -> list[Step]:
    """Alter some packets of a lease: their fields, bytes, senders and times, their order and how often they come."""
    chance = Random(f"{steps[0]['test']} {number}")
    share = chance.choice(SHARES)
    pool = _pool(steps)
    made: list[Step] = []
    for step in steps:
        if not is_packet(step) or chance.random() > share:
            made.append(step)
            continue
        copies = [deepcopy(step)]
        chance.choice(_ALTERATIONS)(chance, copies, pool)
        made.extend(copies)
    return made


def _pool(steps: list[Step]) -> dict[str, list[Any]]:
    """What each field held in this lease: values that belong to others are the likeliest mistakes."""
    pool: dict[str, list[Any]] = {}
    for step in filter(is_packet, steps):
        pool.setdefault("user_id", []).append(step["message"]["user_id"])
        try:
            packet = json.loads(b64decode(step["message"]["body"]))
        except ValueError:
            continue
        for holder, key in _places(packet):
            pool.setdefault(str(key), []).append(holder[key])
    return pool


def _places(value: Any) -> list[Place]:
    keys: list[Any] = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def _edit(step: Step, change: Callable[[Any], None]) -> None:
    """Change the packet of a step; what is not a packet's JSON stays as it is."""
    try:
        packet = json.loads(b64decode(step["message"]["body"]))
    except ValueError:
        return
    if isinstance(packet, dict) and packet:
        change(packet)
        step["message"]["body"] = b64encode(json.dumps(packet).encode()).decode()
        step["message"]["message_id"] = str(packet.get("packet_id", step["message"]["message_id"]))


def _set_field(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    def change(packet: Any) -> None:
        holder, key = chance.choice(_places(packet))
        holder[key] = chance.choice(VALUES) if chance.random() < 0.3 else chance.choice(pool[str(key)])

    _edit(steps[0], change)
    if chance.random() < 0.5:
        _new_id(chance, steps, pool)


def _drop_field(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    def change(packet: Any) -> None:
        holder, key = chance.choice(_places(packet))
        del holder[key]

    _edit(steps[0], change)


def _add_field(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    def change(packet: Any) -> None:
        holders = [packet] + [holder[key] for holder, key in _places(packet) if isinstance(holder[key], dict)]
        chance.choice(holders)[chance.choice(("note", "metrics", "result", *pool))] = chance.choice(VALUES)

    _edit(steps[0], change)


def _shift_times(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    def change(packet: Any) -> None:
        for holder, key in _places(packet):
            if str(key).endswith("_at") and isinstance(holder[key], str):
                try:
                    at = datetime.fromisoformat(holder[key])
                except ValueError:
                    continue
                holder[key] = (at.astimezone(UTC) + timedelta(minutes=chance.choice(MINUTES))).isoformat()

    _edit(steps[0], change)


def _other_sender(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    steps[0]["message"]["user_id"] = chance.choice([*pool["user_id"], "nobody", None])


def _other_property(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    steps[0]["message"][chance.choice(("message_id", "type"))] = chance.choice(["", "x", *PACKETS, "receipts"])


def _new_id(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    value = f"{chance.getrandbits(128):032x}"
    version = chance.choice("1457")
    _edit(
        steps[0],
        lambda packet: packet.update(
            packet_id=f"{value[:8]}-{value[8:12]}-{version}{value[13:16]}-8{value[17:20]}-{value[20:]}"
        ),
    )


def _spoil_bytes(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    body = bytearray(b64decode(steps[0]["message"]["body"]))
    if body:
        body[chance.randrange(len(body))] = chance.randrange(256)
        del body[chance.choice((len(body), len(body), chance.randrange(len(body)))) :]
    steps[0]["message"]["body"] = b64encode(bytes(body)).decode()


def _repeat(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    steps.append(deepcopy(steps[0]))


def _repeat_changed(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    steps.append(deepcopy(steps[0]))
    _set_field(chance, steps, pool)


def _lose(chance: Random, steps: list[Step], pool: dict[str, list[Any]]) -> None:
    steps.clear()


_ALTERATIONS: tuple[Callable[[Random, list[Step], dict[str, list[Any]]], None], ...] = (
    *[_set_field] * 4,
    _drop_field,
    _add_field,
    _shift_times,
    _other_sender,
    _other_property,
    *[_new_id] * 2,
    _spoil_bytes,
    _repeat,
    _repeat_changed,
    _lose,
)
