"""Where a server computes: on threads of its own process, or on workers of a Ray cluster.

`base` says what both can do, so that the engine and the rounds above it know neither.
"""
