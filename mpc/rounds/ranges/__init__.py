"""The policies of the bucket range, one module each, with their options."""
