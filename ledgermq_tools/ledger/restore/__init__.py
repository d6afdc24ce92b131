"""Run `ledgermq restore ROOT@CUT NEWROOT`."""
