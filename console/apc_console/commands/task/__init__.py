"""`apc task`: durable tasks of agents."""
