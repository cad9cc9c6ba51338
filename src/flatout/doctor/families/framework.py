"""torch, TensorFlow, Paddle, JAX and what they load."""

from __future__ import annotations

from flatout.doctor.rule import Rule

RULES: tuple[Rule, ...] = ()
