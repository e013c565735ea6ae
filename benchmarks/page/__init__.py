"""The figures of the web console: what a browser and the API need for a run of 100,000 packets."""
