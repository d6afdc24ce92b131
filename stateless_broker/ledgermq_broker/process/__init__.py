"""Broker processes: from the start to SIGTERM."""
