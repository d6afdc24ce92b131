"""The coordinators of groups: owners of the partitions of `__consumer_offsets`."""
