"""The built-in experiments, each written as a person would write one. Only the engine loads them."""
