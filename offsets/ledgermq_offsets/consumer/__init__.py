"""Members of our own groups that speak the Kafka protocol (KIP-848, `group.protocol=consumer`)."""
