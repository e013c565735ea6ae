"""The claim check: long texts become hashes and come back; what does not fit is refused with its place."""

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contracts.conftest import Documents

from apc_contracts import parse_packet, payload_hash, seal
from apc_contracts.claim_check import ClaimCheckInvalid, check_in, redeem, references_of
from apc_contracts.limits import DEFAULT_LIMITS, DocumentLimits
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import IdeaPayload
from apc_contracts.wire.canonical import canonical_json


def hash_of(text: str) -> str:
    return f"sha256:{sha256(text.encode()).hexdigest()}"


def somewhere(artifact_hash: str) -> str:
    return f"s3://artifacts/{artifact_hash}"


def idea(document: Any, *, metadata: Any = None, **payload: Any) -> Packet:
    """Return an IDEA of any size."""
    good = document("IDEA")
    fields = {**good, "payload": {**good["payload"], **payload}}
    fields.pop("metadata", None)
    if metadata is not None:
        fields["metadata"] = metadata
    return parse_packet(canonical_json(fields), DocumentLimits(size_bytes=1 << 30))


def test_a_long_text_becomes_its_hash_and_comes_back(document: Documents) -> None:
    intent = "größer als alles " * 30_000
    packet = idea(document, intent=intent)
    checked = check_in(packet, somewhere)
    assert checked is not None
    assert checked.packet.payload_as(IdeaPayload).intent == hash_of(intent)
    (reference,) = references_of(checked.packet)
    assert reference.model_dump() == {
        "path": "/payload/intent",
        "hash": hash_of(intent),
        "size": len(intent.encode()),
        "media_type": "text/plain; charset=utf-8",
        "uri": somewhere(hash_of(intent)),
    }
    assert len(seal(checked.packet).body) <= DEFAULT_LIMITS.size_bytes
    assert checked.texts == {hash_of(intent): intent.encode()}
    assert redeem(checked.packet, checked.texts) == packet


def test_the_hashes_of_payload_and_packet_commit_to_the_text(document: Documents) -> None:
    packets = [check_in(idea(document, intent=letter * 300_000), somewhere) for letter in "ab"]
    hashes = {payload_hash(one.packet.payload) for one in packets if one is not None}
    assert len(hashes) == 2


def test_only_as_many_texts_as_it_takes_are_replaced_the_longest_first(document: Documents) -> None:
    assumptions = ["s" * 900, "m" * 100_000, "l" * 200_000, "m" * 100_000]
    checked = check_in(idea(document, assumptions=assumptions), somewhere)
    assert checked is not None
    assert [reference.path for reference in references_of(checked.packet)] == ["/payload/assumptions/2"]
    assert checked.packet.payload_as(IdeaPayload).assumptions == (
        "s" * 900,
        "m" * 100_000,
        hash_of("l" * 200_000),
        "m" * 100_000,
    )


def test_texts_of_metadata_too_whatever_their_keys(document: Documents) -> None:
    metadata = {"a/b~c": {"": ["x" * 300_000]}, "note": "short"}
    packet = idea(document, metadata=metadata)
    checked = check_in(packet, lambda _: None)
    assert checked is not None
    (reference,) = references_of(checked.packet)
    assert (reference.path, reference.uri) == ("/metadata/a~1b~0c//0", None)
    assert redeem(checked.packet, checked.texts) == packet


def test_what_cannot_be_made_to_fit(document: Documents) -> None:
    assert check_in(idea(document, assumptions=["x" * 900] * 400), somewhere) is None
    assert check_in(idea(document, assumptions=["x" * 1_100] * 1_000), somewhere) is None
    with pytest.raises(ClaimCheckInvalid, match=r"metadata\.claim_check: is made by the SDK"):
        check_in(idea(document, intent="x" * 300_000, metadata={"claim_check": []}), somewhere)


def test_the_text_that_the_gate_reads_stays(document: Documents) -> None:
    header = {"task_id": "t", "run_id": "r", "swarm_id": "s", "dialect_id": "d", "dialect_hash": "h"}
    budget = {"type": "Constraint", "id": "c", "constraint_kind": "BUDGET", "expression": "packets=1" + " " * 300_000}
    task = {**document("TASK_IR"), "payload": {"ir_header": header, "objects": [budget]}}
    assert check_in(parse_packet(canonical_json(task), DocumentLimits(size_bytes=1 << 30)), somewhere) is None


TEXT = "t" * 300_000
REFERENCE = {
    "path": "/payload/intent",
    "hash": hash_of(TEXT),
    "size": 300_000,
    "media_type": "text/plain; charset=utf-8",
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"path": "/payload/nothing"}, "/payload/nothing: there is no text"),
        ({"path": "/payload/assumptions/7"}, "there is no text"),
        ({"path": "/payload/assumptions/-1"}, "there is no text"),
        ({"path": "/payload/expected_impact"}, "there is no text"),
        ({"path": "/payload/method_id"}, "there is no text"),
        ({"path": "/sender/agent_id"}, r"metadata\.claim_check: \[0\]\.path"),
        ({"hash": "sha256:7"}, r"\[0\]\.hash"),
        ({"size": -1}, r"\[0\]\.size"),
        ({"media_type": "image/png"}, r"\[0\]\.media_type"),
        ({"note": "x"}, r"\[0\]\.note"),
    ],
)
def test_a_reference_that_does_not_fit_is_refused_with_its_place(
    document: Documents, changed: dict[str, Any], words: str
) -> None:
    packet = idea(document, intent=hash_of(TEXT), metadata={"claim_check": [{**REFERENCE, **changed}]})
    with pytest.raises(ClaimCheckInvalid, match=words):
        redeem(packet, {hash_of(TEXT): TEXT.encode(), "sha256:7": b""})


@pytest.mark.parametrize("given", [7, "x", {"path": "/payload/intent"}, [7], [REFERENCE] * 257])
def test_what_is_no_list_of_references(document: Documents, given: Any) -> None:
    packet = idea(document, metadata={"claim_check": given})
    with pytest.raises(ClaimCheckInvalid, match=r"metadata\.claim_check"):
        references_of(packet)


@pytest.mark.parametrize(
    ("text", "words"), [(b"\xff", "is no UTF-8"), (b"\0", "with its texts the packet is refused: MALFORMED")]
)
def test_bytes_that_are_no_text_are_refused(document: Documents, text: bytes, words: str) -> None:
    artifact_hash = f"sha256:{sha256(text).hexdigest()}"
    reference = {**REFERENCE, "hash": artifact_hash, "size": len(text)}
    packet = idea(document, intent=artifact_hash, metadata={"claim_check": [reference]})
    with pytest.raises(ClaimCheckInvalid, match=words):
        redeem(packet, {artifact_hash: text})


def test_a_text_that_its_place_does_not_take(document: Documents) -> None:
    reference = {**REFERENCE, "path": "/payload/method_id"}
    packet = idea(document, method_id=hash_of(TEXT), metadata={"claim_check": [reference]})
    with pytest.raises(ClaimCheckInvalid, match=r"refused: SCHEMA_INVALID at payload\.method_id"):
        redeem(packet, {hash_of(TEXT): TEXT.encode()})


words = st.sampled_from(["", "a", "größer", "🐝", '"\\', "sha256:", "\u2028", "\x01"])
texts = st.builds(lambda word, times: word * times, words, st.integers(0, 1_500))
values = texts | st.lists(texts, max_size=3) | st.dictionaries(words, texts, max_size=3)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    intent=texts,
    assumptions=st.lists(texts, max_size=5),
    metadata=st.dictionaries(st.sampled_from(["", "a", "a/b", "~0", "~1", "0"]), values),
)
def test_whatever_was_checked_in_comes_back(
    document: Documents, intent: str, assumptions: list[str], metadata: Any
) -> None:
    limits = DocumentLimits(size_bytes=8_000, levels=100)
    packet = idea(document, intent=intent, assumptions=assumptions, metadata=metadata or None)
    checked = check_in(packet, somewhere, limits)
    if checked is not None:
        assert redeem(checked.packet, checked.texts, limits) == packet
        assert len(seal(checked.packet).body) <= limits.size_bytes
