"""Plug-ins for other frameworks, in a folder each (`securemedian.flower`); `rounds` is shared."""
