"""Classic groups of the Kafka protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup. Pure."""
