"""Optimizers, parameter groups, learning-rate schedules, and the update of the weights.

Any `torch.optim.Optimizer` works as it is. torch's implementations (`foreach`, `fused`) are flags
of its groups, which `fused_step.py: set_implementation` sets; nothing needs to be added for these.

To call the fused kernel of another optimizer directly
------------------------------------------------------

1. `fused_step.py: _KERNELS`: a function that makes the call from a group's settings and states, for
   exactly that class. `prepared_step` uses it where all groups are fused.
2. `fused_step.py: forms_to_capture` says in which implementations a CUDA graph can record it. It
   reads `capturable` and `fused` from the optimizer; check what it gives for the new one.
3. docs/recipe.md names the optimizers that can be recorded, under `capture`.
4. tests/integration/test_engine_optim.py: `KINDS`. Its results must be torch's, bit for bit.
"""
