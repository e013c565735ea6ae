"""`apc log`: the evidence of the log, checked, exported, erased, rebuilt."""
