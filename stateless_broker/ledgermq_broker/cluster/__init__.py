"""Which brokers live, and which of them owns which bundle."""
