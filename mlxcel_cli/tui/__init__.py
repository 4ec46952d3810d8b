"""The full-screen chat, on Textual."""
