"""One round as a state machine, without I/O."""
