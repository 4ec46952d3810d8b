"""Choosing the next token: the filter chain, penalties, randomness, logprobs."""
