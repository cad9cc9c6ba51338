"""Changes to a model: precision, activation checkpointing, float8, moving averages."""
