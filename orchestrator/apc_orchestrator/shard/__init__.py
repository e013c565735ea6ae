"""Serve a shard: receive, judge, log, deliver, acknowledge."""
