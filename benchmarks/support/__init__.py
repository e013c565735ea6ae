"""What the benchmarks share: servers and services under measurement, agents, packets, meters, the table of figures."""
