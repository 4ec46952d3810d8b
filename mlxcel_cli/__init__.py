"""Everything a person or an HTTP client touches."""
