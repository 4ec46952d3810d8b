"""Prompt lookup: drafts copied from the context and the round that verifies them."""
