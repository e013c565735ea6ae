"""Sessions as pure policy: a state document, the packets in flight, and `advance`, which moves both."""
