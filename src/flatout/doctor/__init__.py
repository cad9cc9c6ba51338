"""From evidence to causes: signatures in text, facts of the machine, and the rules over both."""
