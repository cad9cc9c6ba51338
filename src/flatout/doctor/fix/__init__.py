"""Fixes as plans: which of a finding's commands flatout can run itself, and how."""
