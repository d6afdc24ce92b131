"""Commands about consumer groups, queue groups, dead letters and workers."""
