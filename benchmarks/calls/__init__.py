"""The cost of calls alone, in this process, without servers."""
