"""The way from ideas to a promotion: barriers, arbitration, transfers, verification, completion."""
