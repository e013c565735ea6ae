"""The contract file: its shape, its checks, its machines and guards, and the loaded contract."""
