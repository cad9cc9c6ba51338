"""Data about runs that only commands need: lists, comparisons, new experiments."""
