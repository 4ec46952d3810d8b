"""Typed shapes of requests and responses, and what is refused by name."""
