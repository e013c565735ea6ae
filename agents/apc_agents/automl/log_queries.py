"""What the summary and the report read from the log: SQL over `apc_log`, by run."""

PACKETS = """
select p.shard, p.seq, p.packet_id, p.packet_type, p.run_phase, p.session_id, p.parent_packet_id, p.round,
       p.sender_agent_id, p.sender_swarm_id, p.generation, p.verdict, p.refusal::text as refusal,
       convert_from(p.body_stored, 'UTF8') as body
from apc_log.agent_packets p
where p.run_id = $1 and p.packet_type = any($2::text[]) and (p.shard, p.seq) > ($3::int, $4::bigint)
order by p.shard, p.seq
"""
"""Packets of some types, in the order of the log, after a place in it."""

COUNTS = """
select packet_type, verdict, count(*) as packets
from apc_log.agent_packets where run_id = $1 group by packet_type, verdict order by packet_type, verdict
"""

TRANSFER_ENDS = """
select distinct on (e.packet_id) e.packet_id, e.to_state, e.metadata::text as metadata
from apc_log.agent_packets p join apc_log.packet_events e using (session_id, packet_id)
where p.run_id = $1 and p.packet_type = 'TRANSFER' and e.recipient = ''
order by e.packet_id, e.seq desc
"""
"""What became of each TRANSFER after its barrier: the last hop of the packet as a whole."""

COORDINATION = """
select c.event, c.from_state, c.to_state, c.round, c.generation, c.step, c.facts::text as facts
from apc_log.coordination_events c
where c.session_id in (select distinct session_id from apc_log.agent_packets where run_id = $1)
order by c.session_id, c.step, c.seq
"""

SESSIONS = """
select session_id, state, is_terminal, round, generation from apc_log.sessions where run_id = $1
"""
