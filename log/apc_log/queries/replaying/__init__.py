"""Read a run again: its entries in order, from the database or a bundle, and verify them."""
