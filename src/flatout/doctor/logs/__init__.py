"""Text that people have: read once, in bounded memory, for signatures and facts."""
