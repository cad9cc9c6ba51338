"""The world: commands, files, environment variables and the clock. Nothing else touches them."""
