"""Two real brokers, and the port before each that plays troubles."""
