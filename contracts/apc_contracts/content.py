"""What a packet says, for people: its natural text, and one line of its content in the order of its schema.

The payload is plain JSON, as a log holds it: content of a registered schema has no type in Python. Nothing here looks
at more of a content than it shows.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from apc_contracts.payloads.by_type import Payload
from apc_contracts.schemas import FIELD_ORDER, TITLE_MARK, RegisteredSchema
from apc_contracts.text import one_line
from apc_contracts.vocabulary import PacketType

Json = Mapping[str, Any]
Schemas = Mapping[str, RegisteredSchema]

WIDTH = 160
"""Characters of a line."""
MOST_TEXT = 20_000
"""Characters of a natural text."""
_MOST_FIELDS = 40
_MOST_ITEMS = 3
_DEEPEST = 3


def content_line(packet_type: str, payload: Json, schemas: Schemas, *, width: int = WIDTH) -> str:
    """Return what a packet says in one line that is safe for a terminal; "" where it says nothing.

    ```python
    from apc_contracts.content import content_line

    refund = {"schema": "refund/1", "content": {"order": "A-2", "euros": 80.0, "reason": "late"}}
    assert content_line("MESSAGE", refund, {}) == "refund/1: order A-2, euros 80, reason late"
    assert content_line("MESSAGE", refund, {}, width=20) == "refund/1: order A-2…"
    ```

    Args:
        packet_type: its type, such as MESSAGE.
        payload: the packet's payload as JSON.
        schemas: the registered schemas by their id; of a content whose schema is missing, fields stand as they come.
        width: characters at most.
    """
    typed = typed_content(payload)
    if typed is None:
        filled_in = fields_line(_mapping(_mapping(payload.get("answer")).get("content")), {}, width=width)
        return cut(": ".join(filter(None, [_natural(packet_type, payload, MOST_TEXT), filled_in])), width)
    schema_id, content = typed
    before = _before(payload)
    said = fields_line(content, document_of(schema_id, schemas), width=width)
    named = f"{one_line(schema_id)}: {said}" if said else one_line(schema_id)
    return cut(f"{before}{named}", width)


def payload_line(packet_type: str, payload: Payload, schemas: Schemas, *, width: int = WIDTH) -> str:
    """Return what `content_line` does, of a payload that was read."""
    document = payload.model_dump(mode="json", by_alias=True, exclude_none=True)
    return content_line(packet_type, document, schemas, width=width)


def natural_text(packet_type: str, payload: Json) -> str:
    """Return what a packet says in its own words, with its line breaks, not made safe; "" where it has none.

    Content of a registered schema is fields, which have no words beside the `text` of a MESSAGE.
    """
    return _natural(packet_type, payload, MOST_TEXT)


def typed_content(payload: Json) -> tuple[str, Json] | None:
    """Return the id of the registered schema and the content that a payload carries, as plain JSON."""
    answer = payload.get("answer")
    nested = answer.get("result") if isinstance(answer, Mapping) else None
    for carrier in (payload, payload.get("result"), payload.get("request"), nested):
        if isinstance(carrier, Mapping):
            schema_id, content = carrier.get("schema"), carrier.get("content")
            if isinstance(schema_id, str) and isinstance(content, Mapping):
                return schema_id, content
    return None


def document_of(schema_id: str, schemas: Schemas) -> Json:
    """Return the document of a schema; an empty one where it is not registered."""
    known = schemas.get(schema_id)
    return {} if known is None else known.document


def title_of(content: Json, document: Json, *, width: int = WIDTH) -> str:
    """Return what names a content: the field that its schema marks as title, else its first text; "" without one."""
    for _, value, field in ordered_fields(content, document):
        if value is not None and (field.get(TITLE_MARK) is True or (isinstance(value, str) and value.strip())):
            return cut(_value_words(value, field, document, 0, width), width)
    return ""


def fields_line(content: Json, document: Json, *, width: int = WIDTH) -> str:
    """Return the fields of a content in a line: the marked title first, then in the order of the schema."""
    return cut(_fields(content, document, document, 0, width), width)


def ordered_fields(content: Json, document: Json, root: Json | None = None) -> Iterator[tuple[str, Any, Json]]:
    """Yield name, value and subschema of each field: the marked title first, then in the order of the schema.

    JSON of the wire and of the log keeps no order: the schema names it in `x-order`, in part in `required`.
    """
    schema = resolved(document, document if root is None else root)
    known = schema.get("properties")
    known = known if isinstance(known, Mapping) else {}
    named = [*_texts(schema.get(FIELD_ORDER)), *_texts(schema.get("required")), *known]
    order = dict.fromkeys(name for name in named if name in content)
    titles = [name for name in order if _mapping(known.get(name)).get(TITLE_MARK) is True]
    for name in dict.fromkeys([*titles, *order]):
        yield name, content[name], _mapping(known.get(name))
    for name, value in content.items():
        if name not in order:
            yield name, value, {}


def cut(text: str, width: int) -> str:
    """Return a safe line of at most `width` characters, with an ellipsis where it was longer."""
    line = one_line(text[: 4 * width + 64])
    return line if len(line) <= width else f"{line[: width - 1].rstrip(' ,:')}…"


def _fields(content: Json, document: Json, root: Json, depth: int, width: int) -> str:
    said: list[str] = []
    length = 0
    for number, (name, value, field) in enumerate(ordered_fields(content, document, root)):
        if length > width or number >= _MOST_FIELDS:
            said.append("…")
            break
        if value is None:
            continue
        words = f"{name[:width]} {_value_words(value, field, root, depth, width)}".rstrip()
        said.append(words)
        length += len(words) + 2
    return ", ".join(said)


def _value_words(value: Any, field: Json, root: Json, depth: int, width: int) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return number_words(value)
        case str():
            return value[: 4 * width]
        case Mapping():
            inside = _fields(value, field, root, depth + 1, width) if depth < _DEEPEST else "…"
            return f"({inside})"
        case list() | tuple():
            return _list_words(value, field, root, depth, width)
        case _:
            return "none"


def _list_words(values: list[Any] | tuple[Any, ...], field: Json, root: Json, depth: int, width: int) -> str:
    if depth >= _DEEPEST:
        return f"[{len(values):,}]"
    item = _mapping(resolved(field, root).get("items"))
    said = [_value_words(one, item, root, depth + 1, width) for one in values[:_MOST_ITEMS]]
    more = len(values) - len(said)
    return f"[{'; '.join(said)}{f'; {more:,} more' if more else ''}]"


def number_words(value: float) -> str:
    """Return a number as people write it: 480 for 480.0, at most ten digits."""
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else f"{value:.10g}" if abs(value) < 10**300 else "a huge number"
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.10g}"


def resolved(schema: Json, root: Json) -> Json:
    """Return the schema that names the fields: what a reference means, or the one alternative that is no null."""
    for _ in range(8):
        alternatives = [one for one in _list(schema.get("anyOf")) if _mapping(one).get("type") != "null"]
        if isinstance(reference := schema.get("$ref"), str):
            _, _, name = reference.rpartition("/")
            found = _mapping(root.get("$defs")).get(name) or _mapping(root.get("definitions")).get(name)
            schema = root if reference == "#" else _mapping(found)
        elif len(alternatives) == 1 and "properties" not in schema:
            schema = _mapping(alternatives[0])
        else:
            break
    return schema


# The natural text of each packaged type.


def _natural(packet_type: str, payload: Json, most: int) -> str:
    say = _SAYS.get(packet_type, _signal)
    return say(payload)[:most]


def _before(payload: Json) -> str:
    """Return what stands before the typed content: how a question ended, or that it is a request."""
    outcome = _text(_mapping(payload.get("answer")), "outcome")
    return f"{outcome}: " if outcome else ""


def _signal(payload: Json) -> str:
    """Return a signal with its reason, what it asks, or what it answers."""
    question, answer = _mapping(payload.get("question")), _mapping(payload.get("answer"))
    if question:
        return _text(question, "text")
    session = _session(_mapping(payload.get("session")))
    said = [_text(answer, "outcome") or _text(payload, "signal"), _text(payload, "reason"), session]
    return ": ".join(filter(None, [*said, _text(answer, "note")]))


def _session(session: Json) -> str:
    """Return what a START or a SYNC says of its session."""
    if state := _text(session, "state"):
        place = ", ".join(f"{name} {session.get(name)}" for name in ("round", "generation", "step"))
        return f"{state}, {place}"
    if contract := _text(session, "contract"):
        return f"contract {contract}, members {', '.join(_texts(session.get('members'))[:_MOST_FIELDS])}"
    swarms = [
        f"{_text(one, 'swarm_id')}: {', '.join(_texts(one.get('agents')))}" for one in _mappings(session.get("swarms"))
    ]
    return "; ".join(swarms[:_MOST_FIELDS])


def _task(payload: Json) -> str:
    claims = (one for one in _mappings(payload.get("objects")) if one.get("type") == "Claim")
    return "\n".join(_text(one, "text") for one in claims)


def _eval(payload: Json) -> str:
    outcome = _mapping(payload.get("metric_set")).get("outcome")
    metrics = _mapping(payload.get("metrics"))
    measured = f"outcome {_score(outcome)}" if outcome is not None else _fields(metrics, {}, {}, 0, WIDTH)
    passed = "passed" if payload.get("pass") is True else "did not pass"
    return "\n".join([f"{measured}, {passed}" if measured else passed, *_texts(payload.get("notes"))])


def _transfer(payload: Json) -> str:
    sender, receiver = _score(payload.get("sender_score")), _score(payload.get("receiver_score"))
    return (
        f"offers {_text(payload, 'protocol_id')} from {_text(payload, 'from_swarm')} ({sender}) "
        f"to {_text(payload, 'to_swarm')} ({receiver})"
    )


def _arbitration(payload: Json) -> str:
    winner = _text(payload, "winner_candidate_id")
    among = len(_list(payload.get("candidates")))
    return f"chose {'nobody' if winner == 'none' else winner} among {among:,} candidates"


def _decision(payload: Json) -> str:
    following = ", ".join(_texts(payload.get("next_actions")))
    return ", then ".join(filter(None, [_text(payload, "recommendation"), following]))


def _receipt(payload: Json) -> str:
    return ": ".join(filter(None, [_text(payload, "ack_status").lower(), _text(payload, "reason")]))


def _error(payload: Json) -> str:
    return ": ".join(filter(None, [_text(payload, "error_code"), _text(payload, "message")]))


def _text(payload: Json, name: str) -> str:
    value = payload.get(name)
    return value if isinstance(value, str) else ""


def _score(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "unknown"


def _mapping(value: Any) -> Json:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _mappings(value: Any) -> list[Json]:
    return [one for one in _list(value) if isinstance(one, Mapping)]


def _texts(value: Any) -> list[str]:
    return [one for one in _list(value) if isinstance(one, str)]


_SAYS: Mapping[str, Callable[[Json], str]] = {
    PacketType.TASK_IR: _task,
    PacketType.IDEA: lambda payload: _text(payload, "intent"),
    PacketType.CLAIM: lambda payload: _text(payload, "text"),
    PacketType.ARTIFACT: lambda payload: f"{_text(payload, 'artifact_kind')} {_text(payload, 'artifact_id')}",
    PacketType.EVAL: _eval,
    PacketType.TRANSFER: _transfer,
    PacketType.ARBITRATION: _arbitration,
    PacketType.DECISION: _decision,
    PacketType.RETRACTION: lambda payload: _text(payload, "reason"),
    PacketType.ACK: _receipt,
    PacketType.NACK: _receipt,
    PacketType.ERROR: _error,
    PacketType.MESSAGE: lambda payload: _text(payload, "text"),
}
