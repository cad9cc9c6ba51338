"""Everything a training step needs, built once: model, optimizer, data, validation."""
