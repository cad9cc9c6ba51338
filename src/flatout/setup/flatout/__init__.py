"""flatout itself: how it was installed, its update and removal, disk use and documentation."""
