"""Where the time of a batch goes, from `send` to its acknowledgement and to a consumer."""
