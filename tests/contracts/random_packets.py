"""Random documents: good ones of every kind, and the same after a few careless changes."""

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tests.contracts.conftest import ENVELOPE, GATES, OTHER_ID, PAYLOADS, _document

from apc_contracts.vocabulary import PROTOCOL_1_1, PROTOCOL_VERSION, Signal

TASK_SESSION = {"contract": "task", "members": ["builder-1"], "deciders": ["role:lead"], "approvals": 1}
STATE = {
    "state": "EXECUTE",
    "run_phase": "EXECUTION",
    "round": 1,
    "generation": 2,
    "step": 3,
    "paused": False,
    "scores": {"linear": 0.5},
    "subjects": [OTHER_ID],
}
RESULT = {"schema": "finding/1", "content": {"file": "a.py", "line": 3}}
LATER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SIGNAL", {"signal": "START", "session": TASK_SESSION}),
    ("SIGNAL", {"signal": "SYNC", "session": STATE}),
    ("SIGNAL", {"signal": "SYNC", "session": {**STATE, "contract": "task", "reviewers": ["role:lead"]}}),
    ("SIGNAL", {"signal": "ASK", "expected_response_by": "2026-02-19T08:00:00Z", "question": {"text": "May I?"}}),
    (
        "SIGNAL",
        {
            "signal": "ASK",
            "expected_response_by": "2026-02-19T08:00:00Z",
            "request": {**RESULT, "returns": "finding/1"},
        },
    ),
    ("SIGNAL", {"signal": "ANSWER", "answer": {"outcome": "approved", "note": "yes"}}),
    ("SIGNAL", {"signal": "ANSWER", "answer": {"outcome": "answered", "result": RESULT}}),
    ("SIGNAL", {"signal": "WAKE", "wake": {"key": "tea", "after_ms": 1_000}}),
    ("SIGNAL", {"signal": "WAKE", "wake": {"key": "tea", "at": "2026-02-19T08:00:00Z"}}),
    ("EVAL", {"metrics": {"share": 0.5}, "limits": {"share": {"min": 0, "max": 1}}, "pass": True}),
    ("DECISION", {**PAYLOADS["DECISION"], "result": RESULT}),
)
"""Payloads that apc/1.1 has beside those of apc/1.0, and more kinds of SIGNAL."""
WHOLE: tuple[dict[str, Any], ...] = (
    *(_document(packet_type) for packet_type in PAYLOADS),
    *(
        {**ENVELOPE, "packet_type": packet_type, "payload": payload, "protocol_version": PROTOCOL_1_1}
        for packet_type, payload in LATER
    ),
)
LEAVES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 9, 10, 11, 0.0, 1.0, 4.0, 1e3, 0.5, 1.5, -0.5, 1e300, "", "x", "a b", "é", "4",
    "ACCEPTED", "INTRA_AGENT", "IDEA", "role:x", "sha256:00", OTHER_ID, "2026-02-19T07:50:00+01:00", [], {}, ["x", "x"],
    {"x": 1}, {"a b": 0.5}, *Signal, PROTOCOL_VERSION, PROTOCOL_1_1, GATES,
)  # fmt: skip

Path = tuple[Any, ...]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every value in a document but its own."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(item, (*path, key))


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


_NAMED: dict[Any, list[Any]] = {}
for _whole in WHOLE:
    for _path in places(_whole):
        _NAMED.setdefault(_path[-1], []).append(_at(_whole, _path))


def random_packet(chance: random.Random) -> dict[str, Any]:
    """Return a good document, or one with up to four changes."""
    document = deepcopy(chance.choice(WHOLE))
    for _ in range(chance.randint(0, 4)):
        _change(document, chance)
    return document


def _change(document: dict[str, Any], chance: random.Random) -> None:
    *parents, last = chance.choice(list(places(document)))
    target = _at(document, tuple(parents))
    match chance.randrange(7):
        case 0:
            target[last] = deepcopy(chance.choice(LEAVES))
        case 1:
            del target[last]
        case 2 if isinstance(target, dict):
            name = chance.choice([name for name in _NAMED if isinstance(name, str)])
            target[name] = deepcopy(chance.choice(_NAMED[name]))
        case 3 if isinstance(target, list):
            target.append(deepcopy(chance.choice(target)))
        case 4 if type(target[last]) in (int, float):
            target[last] = chance.choice([float(target[last]), -target[last], target[last] + 1, target[last] / 2])
        case 5 if last in _NAMED:
            target[last] = deepcopy(chance.choice(_NAMED[last]))
        case 6:
            document["protocol_version"] = chance.choice([PROTOCOL_VERSION, PROTOCOL_1_1])
        case _:
            target[last] = deepcopy(chance.choice(LEAVES))


def body_of(document: dict[str, Any]) -> bytes:
    """Return the JSON of a document as a careless sender writes it."""
    return json.dumps(document, ensure_ascii=False).encode()
