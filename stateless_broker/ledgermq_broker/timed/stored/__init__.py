"""What is stored of a feature, read without a broker: a view of it, and a check for `ledgermq fsck`."""
