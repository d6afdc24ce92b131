"""Run the state machines of a cluster in the brokers that own their logs: the partitions of internal
topics, such as `__consumer_offsets`.

`term` loads the partitions of one bundle and serves them until the bundle's end, `terms` does so for
all bundles of a broker, `bundle_log` writes what they decide, and `topic` finds or creates an
internal topic. Must not know: what the partitions hold.
"""
