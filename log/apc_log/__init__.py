"""The packet log: what it holds, how it is hashed and encrypted, and how it is read.

The orchestrator builds log batches, the persister writes them, agents and console read; none of them knows another.
"""
