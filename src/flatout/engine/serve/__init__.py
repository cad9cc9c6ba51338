"""What answers requests in a replica of `flatout serve`: a run, or an exported file."""
