"""What servers and clients are configured with: TOML files, key files and addresses.

It lies below both, so that neither has to import the other. The modules may be read in any order:
`toml`, `keys`, `addresses`.
"""
