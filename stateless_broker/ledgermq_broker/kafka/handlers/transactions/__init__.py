"""Transactions of clients of the Kafka protocol: what producers ask for, and what tools do."""
