"""The HTTP side of ``mlxcel serve``: an OpenAI-shaped endpoint on one engine thread."""
