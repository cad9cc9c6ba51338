"""`flatout predict` and `evaluate`: a run's weights applied to new data."""
