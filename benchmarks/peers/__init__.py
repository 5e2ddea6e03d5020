"""Other people's systems, timed on the same work as ours in one run: `securemedian bench peers`.

`spu_party.py` and `mpyc_party.py` are programs of their own. They run in virtual environments of their own, which
`processes.py` makes, and nothing imports them.
"""
