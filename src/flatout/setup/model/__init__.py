"""Data of setup: requests, and the plans made for them."""
