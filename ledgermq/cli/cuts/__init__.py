"""Commands about cuts."""
