"""What servers and clients have in common: files, names, states, keys, receipts and metrics.

It lies below both, so that neither has to import the other.
"""
