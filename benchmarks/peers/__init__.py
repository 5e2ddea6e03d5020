"""`securemedian bench peers`: other people's systems, timed on the same work as ours in one run.

`spu_party.py` and `mpyc_party.py` are programs that nothing imports. Each runs in a virtual
environment of its own, which `processes.py` makes.
"""
