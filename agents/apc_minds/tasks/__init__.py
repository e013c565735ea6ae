"""Durable tasks: ASYNC actions, kept in a store, run by the workers of their agent."""
