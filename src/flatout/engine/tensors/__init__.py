"""Nested tensors, state trees, and how both are stored and sent."""
