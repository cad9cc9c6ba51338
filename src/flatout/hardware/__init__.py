"""Facts about hardware, drivers and builds by exact name, each with its source."""
