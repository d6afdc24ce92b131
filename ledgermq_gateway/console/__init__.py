"""The operator's console: its files, its sign-in, and what a cookie may do."""
