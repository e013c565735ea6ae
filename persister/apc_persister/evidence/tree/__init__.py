"""The Merkle tree of a shard: tiles, proofs, signed heads, and the backfill of late rows."""
