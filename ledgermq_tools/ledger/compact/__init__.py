"""`ledgermq compact`: once, or as a service; and its reports."""
