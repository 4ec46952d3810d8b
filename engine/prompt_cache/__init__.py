"""Caches the KV of prompts and answers, so that a prompt is prefilled only from where it is new."""
