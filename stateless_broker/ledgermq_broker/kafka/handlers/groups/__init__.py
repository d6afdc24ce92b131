"""Serve consumer groups to clients of the Kafka protocol: members, committed offsets, tools."""
