"""Settings of processes, and where they come from."""
