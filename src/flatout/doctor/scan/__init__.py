"""Logs and other text, read once in bounded memory for signatures and facts."""
