"""Commands about messages: send, print, find, recall."""
