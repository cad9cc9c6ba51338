"""Runs shown elsewhere: reads what a run's folder holds, and never writes into it."""
