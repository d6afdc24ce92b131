"""One module for each kind of schema: how its text is read, which fields it has, what it is compatible with."""
