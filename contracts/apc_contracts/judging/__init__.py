"""The inputs and outputs of judging: facts, session view, quotas, verdict."""
