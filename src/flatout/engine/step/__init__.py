"""One training step: plain, captured in CUDA graphs, or the experiment's own.

   engine/session/step_kinds.py   which kind of step a session has
     step.py                        EagerStep: forward, loss, backward, update
       compiled_loss.py               StepLoss: the loss, compiled if the recipe says so
       compiled_optimizer.py          OptimizerSteps: the same for an optimizer's step
     captured_step.py               CapturedStep: sets updates aside and launches them together;
                                    its EagerStep makes those of another form
       cuda_graphs.py                 records and launches: the only file that uses
                                      torch.cuda.CUDAGraph
       device_lr.py                   learning rates where a graph reads them
     custom_step.py                 CustomStep: the experiment's `step`
   tune/captures.py               when graphs are tried, and why not: no tensors

Updates are queued, so `flush` must be called before weights or losses are read: the
loop does before a line of progress, a validation, a checkpoint and the end of an epoch. Every
update of a whole batch, recorded or not, reads its inputs from the same static tensors and its
rates from the device, so that a resumed run, whose first updates are not replayed, has the same
bits. Recording does nothing to weights or generators: where it fails, eager steps continue. Tests
and planted bugs use `tests/support/recorded_graphs.py`, which is as strict on a CPU.

A change of the recipe is a decision in the run's history like any other, so a resume replays
it, and going back to a checkpoint is a resume within the process. What is answered in place is
answered outside of `except`: a traceback holds the tensors that are to make room.
"""
