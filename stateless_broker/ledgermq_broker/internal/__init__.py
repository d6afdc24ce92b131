"""Serve the partitions of internal topics, such as `__consumer_offsets`, in the brokers that own
their bundles.

`term` loads the partitions of one bundle and serves them until the broker loses the bundle, `terms`
does so for all bundles of a broker, `bundle_log` writes the records of their decisions,
`issued_state` answers when these are durable, and `topic` finds or creates an internal topic. Must
not know: what the partitions hold.
"""
