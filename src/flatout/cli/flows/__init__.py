"""Commands that take several steps: show a plan, ask, carry it out, report."""
