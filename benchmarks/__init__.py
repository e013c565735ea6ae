"""What the bus costs: every figure beside the raw limit that the same run measures.

Source: docs/explanation/performance.md.
"""
