"""llama.cpp's API: completions, infilling, tokens, properties, slots."""
