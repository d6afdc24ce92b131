"""Commands for those who run a cluster."""
