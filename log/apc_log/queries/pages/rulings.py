"""The final verdict on a packet that was held on arrival, as parts of statements over `agent_packets AS packet`."""

RULING = """
LEFT JOIN LATERAL (
    SELECT CASE WHEN hop.to_state = 'ROUTED' THEN 'accepted'
                WHEN hop.metadata ? 'refusal' THEN 'refused' END AS verdict,
           hop.metadata -> 'refusal' ->> 'code' AS code
    FROM apc_log.packet_events AS hop
    WHERE packet.verdict = 'held' AND hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id
      AND hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED'
    ORDER BY hop.seq LIMIT 1
) AS ruling ON true
"""
"""Joins the ruling of a barrier or of RESUME; looks up nothing for other packets."""
VERDICT = "coalesce(ruling.verdict, packet.verdict)"
"""`held` while there is no ruling."""
CODE = "coalesce(packet.refusal_code, ruling.code)"
