"""The methods: what can be computed of the clients' updates.

Each has a module of its own, and `registry` lists them. `base` says what a method is, `order` is a
part of two of their protocols, and `reveal` is the only module that opens shares.
"""
