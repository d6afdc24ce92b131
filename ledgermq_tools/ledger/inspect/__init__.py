"""`ledgermq inspect`: show what a root holds, and damage in it."""
