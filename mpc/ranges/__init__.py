"""The policies of the bucket range: one module for each, with its options."""
