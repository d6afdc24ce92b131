"""The rooms of a coordinator: one for each kind of caller, over the ids that one term serves."""
