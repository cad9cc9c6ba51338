"""What tests, campaigns and benchmarks share: fakes, recorders, cases and result files."""
