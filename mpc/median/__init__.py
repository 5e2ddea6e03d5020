"""The medians: what is computed, and what is opened. `reveal` is the only module that opens shares of results."""
