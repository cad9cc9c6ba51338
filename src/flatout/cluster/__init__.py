"""A cluster of containers on one machine: its files as text, and what Docker says, read."""
