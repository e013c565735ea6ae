"""A packet judged offline (docs/specification/contract.md section 14).

There is no session and no registry; now = the packet's own created_at.
"""

from apc_contracts.admission.admit import admit
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import PacketRefused
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.verdict import Refusal, Verdict, VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.wire.parsing import parse_packet


def validate_offline(body: bytes, contract: Contract) -> Verdict:
    """Return the verdict of the rules that need neither session nor registry; bytes that are no packet are REFUSED."""
    try:
        packet = parse_packet(body)
    except PacketRefused as error:
        refusal = Refusal(error.code, "parse_packet", error.path, error.message)
        return Verdict(VerdictKind.REFUSED, refusal)
    return judge_offline(packet, contract)


def judge_offline(packet: Packet, contract: Contract) -> Verdict:
    """Return the verdict of `validate_offline` for a packet that was parsed already."""
    return admit(packet, None, Facts(now=packet.created_at), contract)
