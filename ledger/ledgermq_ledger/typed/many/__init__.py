"""Decoders of many values at once into columns, all values or none. `ledgermq_ledger.typed.rows` says what is right."""
