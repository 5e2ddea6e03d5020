"""What servers and clients have in common: files, names, states, keys, receipts and metrics."""
