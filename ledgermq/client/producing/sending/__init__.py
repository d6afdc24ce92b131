"""What a `Producer` is made of: its life, and the ways in which records come in."""
