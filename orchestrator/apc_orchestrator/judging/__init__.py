"""Judge inputs: facts, verdicts, and what follows from them. No I/O."""
