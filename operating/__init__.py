"""The verbs of whoever sets up and examines a party: `keygen` and `doctor`."""
