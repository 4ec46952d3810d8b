"""Models on disk and on hubs: resolving, pulling, converting and loading them."""
