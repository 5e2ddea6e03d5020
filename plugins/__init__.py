"""Plug-ins for other frameworks; `rounds` is what they share, and each has a folder of its own.

They are imported as `securemedian.flower` and `securemedian.nvflare`.
"""
