"""`apc packet`: packets of the log, one by one and in their causes."""
