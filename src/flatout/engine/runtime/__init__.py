"""Device and process: memory, allocator, random numbers, timing, signals, errors."""
