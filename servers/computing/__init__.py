"""Where a server computes its part of a round."""
