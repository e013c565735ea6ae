"""parse_packet under atheris, a coverage-guided fuzzer: `python fuzz_with_atheris.py -runs=200000 CORPUS`."""

import sys

import atheris

with atheris.instrument_imports(include=["apc_contracts"]):
    from apc_contracts import PacketRefused, parse_packet, seal


def judge(body: bytes) -> None:
    """Any exception but a refusal is a crash."""
    try:
        packet = parse_packet(body)
    except PacketRefused:
        return
    assert parse_packet(seal(packet).body) == packet


atheris.Setup(sys.argv, judge)
atheris.Fuzz()
