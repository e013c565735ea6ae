"""Acts of operators on a system in another process without a broker: a socket in its data folder."""
