"""Who is who: ids, shards, registrations, their changes, signatures."""
