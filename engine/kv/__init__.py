"""KV storage: what a layer's cache is and which rows live in it."""
