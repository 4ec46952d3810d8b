"""The scheduler: who of many requests runs next on one engine."""
