"""What an agent emits: packets and receipts."""
