"""Protocols on shares: oblivious transfer, correlations, comparison, conversion, dealt uploads.

Nothing here knows what a round computes; that is `mpc.rounds`, which stands on this.
"""
