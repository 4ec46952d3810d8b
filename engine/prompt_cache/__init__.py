"""Remembers the KV of prompts and answers, so that a prompt is read only from where it is new."""
