"""The methods: what can be computed of the clients' updates.

Each has a module of its own, and `registry` lists them. `base` says what a method is, and `reveal`
is the only module that opens shares.
"""
