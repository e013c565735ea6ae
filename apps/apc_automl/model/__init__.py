"""Model files, and the confined process that reads those of others."""
