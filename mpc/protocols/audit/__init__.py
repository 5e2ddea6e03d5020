"""The parts of security against a malicious server: authenticated values, bits and ANDs.

`opening` opens them, so that no party can open others. `equality` compares values unopened.
"""
