"""What makes the log tamper-evident: its entries as leaves of a Merkle tree a shard, and signed heads of that tree.

Producing lives here; checking stands alone in `apc_log.offline_verifier`. Formats: docs/reference/log-format.md.
"""
