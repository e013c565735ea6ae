"""Words, tokens and summaries of texts."""
