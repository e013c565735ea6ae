-- In which tasks a protocol was used, read from the index alone: a summary of the whole log reads some tens of thousands of
-- rulings. In place of the index by (protocol_id, shard, seq), which no query needs any more.
DROP INDEX apc_log.transfer_rulings_protocol;
CREATE INDEX transfer_rulings_uses ON apc_log.transfer_rulings (protocol_id, run_id, task_id)
    INCLUDE (judged_at, is_accepted, refusal_code);
