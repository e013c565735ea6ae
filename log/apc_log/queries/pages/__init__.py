"""Pages of the log for the web console: cursors, columns for drawing, entries for the live feed."""
