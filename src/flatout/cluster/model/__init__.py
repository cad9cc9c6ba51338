"""Data of a cluster: the request, its layout, and the model of how it scales."""
