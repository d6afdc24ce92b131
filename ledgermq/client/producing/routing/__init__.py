"""Records on their way to partitions."""
