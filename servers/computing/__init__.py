"""The places where a server computes its part of a round."""
