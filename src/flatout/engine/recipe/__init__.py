"""Recipe defaults for an experiment, and the facts about it that they depend on."""
