"""The run folder as the engine writes and reads it: events, and the history made from them."""
