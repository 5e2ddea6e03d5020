"""What the protocols cost, between two processes over loopback. Benchmarks time and do not verify; tests verify and do
not time.
"""
