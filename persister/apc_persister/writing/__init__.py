"""Write log batches: queue, intake, transaction, rows and projections of one shard."""
