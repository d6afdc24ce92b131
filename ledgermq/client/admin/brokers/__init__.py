"""What brokers say of themselves."""
