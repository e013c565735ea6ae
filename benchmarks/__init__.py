"""What the bus costs: every figure beside the raw limit that the same run measures (quality.md section 4)."""
