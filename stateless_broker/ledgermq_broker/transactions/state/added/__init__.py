"""Transactions of clients of the Kafka protocol, as far as they need more than ours: pure states and their records."""
