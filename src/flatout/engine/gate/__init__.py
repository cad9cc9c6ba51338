"""Is a faster step still right? A candidate is compared with the plain step and with fp64.

    gradients     at the same weights and draws, with an fp64 reference
    accumulation  sums, counts, clipping and loss scaling, with gradients known beforehand
    optimizer     alone, fed known gradients while the learning rate changes, with fp64
    curve         a few whole updates from the same weights, with the plain step's
    masks         what is drawn differs from step to step, and repeats from the same state
    data          each sample once, in the plain order, with the plain augmentation
    compiled      compiled code against the same step uncompiled, on whole batches

Only checks that the changed recipe fields concern are run (tune/gate.py). Few samples are used, so
that it takes no longer than a few steps; and everything is left as it was.
"""

from __future__ import annotations

from flatout.engine.gate.fixtures import GateSubject
from flatout.engine.gate.judging import Gate, judge
from flatout.engine.gate.runs import Maker, Updating

__all__ = ["Gate", "Maker", "GateSubject", "Updating", "judge"]
