"""The reference swarm: an audited search for the best model of a table (needs the extra `automl`).

The roles meet in packets and in the artifact store alone. Its modules are imported by name: the package itself imports
nothing, since every `apc` command loads its `cli`; numeric libraries are loaded by the training processes.
"""
