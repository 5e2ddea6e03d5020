"""The rounds of one server: who asks, which there are, and what runs them."""
