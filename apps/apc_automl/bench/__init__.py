"""Experiments with the reference swarm: many runs in process, figures with their uncertainty."""
