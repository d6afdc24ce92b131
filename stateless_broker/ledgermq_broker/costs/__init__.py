"""What requests to the store cost, by topic and principal."""
