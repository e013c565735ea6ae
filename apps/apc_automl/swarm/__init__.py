"""The agents: librarian, builders, sentinel, and what they say to each other."""
