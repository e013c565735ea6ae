"""From bytes to packets and back: strict parsing, canonical form, sealing, receipts, refused input."""
