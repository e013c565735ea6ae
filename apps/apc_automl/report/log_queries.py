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

PAST_TRIALS = """
with profiles as (
    select distinct on (brief.run_id) brief.run_id, brief.shard, brief.seq, brief.judged_at,
           object ->> 'expression' as profile
    from apc_log.agent_packets brief
    join apc_log.packets content using (shard, seq)
    cross join lateral jsonb_array_elements(content.packet #> '{payload,objects}') as object
    where brief.packet_type = 'TASK_IR' and brief.verdict = 'accepted' and brief.sender_role = 'librarian'
      and object ->> 'id' = 'profile' and brief.run_id <> $1
    order by brief.run_id, brief.shard, brief.seq
), newest as (
    select run_id, profile from profiles order by judged_at desc, run_id limit $2
), trials as (
    select newest.run_id, newest.profile, eval.session_id, eval.packet_id, content.packet,
           (content.packet #>> '{payload,metric_set,outcome}')::double precision as outcome
    from newest
    join apc_log.agent_packets eval using (run_id)
    join apc_log.packets content on content.shard = eval.shard and content.seq = eval.seq
    where eval.packet_type = 'EVAL' and eval.sender_role = 'builder' and eval.verdict = 'accepted'
      and eval.run_phase in ('DISCOVERY', 'REFINEMENT', 'CONVERGENCE')
      and exists (
          select from apc_log.packet_events hop
          where hop.session_id = eval.session_id and hop.packet_id = eval.packet_id
            and 'verification_pass' = any (hop.events)
      )
)
select run_id, profile, outcome, packet #>> '{symbolic_keys,0}' as family,
       packet #>> '{proof_bundle,evidence_refs,2}' as recipe_hash
from trials
where packet #>> '{symbolic_keys,0}' is not null and exists (
    select from apc_log.agent_packets answer
    join apc_log.packets said using (shard, seq)
    where answer.parent_packet_id = trials.packet_id and answer.session_id = trials.session_id
      and answer.sender_role = 'sentinel' and answer.verdict = 'accepted'
      and ((said.packet #>> '{payload,confidence_post}')::double precision >= 0.5
           or abs((said.packet #>> '{payload,metric_set,outcome}')::double precision - trials.outcome) < 1e-6)
)
order by run_id, recipe_hash
"""
"""What earlier runs have measured and the sentinel confirmed, with the profile of their tables: but for the run $1, and
of the $2 newest runs."""
