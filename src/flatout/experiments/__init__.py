"""The built-in experiments, written as a person would write them. Only the engine loads them."""
