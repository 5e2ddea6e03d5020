"""The methods: what can be computed of the clients' updates, one module for each (`registry` lists
them), and the parts of protocols that they share. `reveal` is the only module that opens shares of
results.
"""
