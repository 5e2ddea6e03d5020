"""The part that servers and clients share: files, names, states, keys, receipts and metrics."""
