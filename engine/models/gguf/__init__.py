"""GGUF files: the format, and their conversion to mlx-lm folders."""
