"""The delivery of a packet to its recipients: receipts, acknowledgements, retries, failures."""
