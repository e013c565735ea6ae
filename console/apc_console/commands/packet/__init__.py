"""`apc packet`: packets of the log, one by one and by their causes."""
