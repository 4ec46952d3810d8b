"""Chats as line mode and the TUI share them: messages, saved chats, commands and answers."""
