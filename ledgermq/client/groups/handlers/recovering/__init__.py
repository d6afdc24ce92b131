"""Failed messages in a local file, handed to the handler again."""
