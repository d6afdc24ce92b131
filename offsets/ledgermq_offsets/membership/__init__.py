"""Members of groups: they join, subscribe, and are assigned partitions."""
