-- Pages of TRANSFERs, the newest first.
CREATE INDEX transfer_rulings_newest ON apc_log.transfer_rulings (judged_at, shard, seq);
