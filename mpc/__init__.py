"""Two-party computation of coordinate-wise medians and means on shares.

`protocols` are the protocols on shares, from oblivious transfer to comparison. `rounds` is what a
round computes with them: methods, ranges, parameters, the pipeline. Nothing here opens a socket,
reads a configuration or knows of servers and clients.
"""
