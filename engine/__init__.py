"""The inference engine: MLX and plain Python, no terminal, network or event loop."""
