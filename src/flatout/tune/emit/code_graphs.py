"""Text of the programs that `flatout tune --emit code` writes: updates in CUDA graphs.

The order of operations is that of `engine/step/captured_step.py`. `code_lines.py` has the marks.
"""

GRAPHS = '''
class Graphs:
    """Captures the GPU work of an action; all graphs share a memory pool."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream(DEVICE)
        self.pool = torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Runs on the capture stream, where libraries then allocate their workspaces."""
        current = torch.cuda.current_stream(DEVICE)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)

    def recorded(self, action: Any) -> torch.cuda.CUDAGraph:
        """A graph of the action, which is captured but not run."""
        graph = torch.cuda.CUDAGraph()
        # A thread that pins memory would break a capture in global mode.
        mode = "thread_local"
        with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode=mode):
            action()
        return graph
'''

CAPTURED = '''
def tensors_in(parts: Any) -> list[torch.Tensor]:
    """The tensors of an update's batches."""
    found: list[torch.Tensor] = []
    for batch, _ in parts:
        each(batch, found.append)
    return found


def like(parts: Any) -> list[Any]:
    """Zeroed copies of an update's batches, for graphs to read."""
    return [(each(batch, torch.zeros_like), num) for batch, num in parts]


class CapturedSteps:
    """Updates in CUDA graphs, launched $steps_per_launch at a time.

    A graph replays kernels with the addresses they were captured with. So inputs, learning rates
    and losses live in fixed tensors. The first three updates run eagerly, and so does every batch
    whose shape differs from that of the first whole one.
    """

    def __init__(self, make_update: Any, optimizer: Any, batch_size: int) -> None:
        self.make_update = make_update
        self.groups = optimizer.param_groups
        self.batch_size = batch_size
        self.graphs = Graphs()
        self.recorded: dict[int, Any] = {}
        self.rates = torch.zeros($steps_per_launch, len(self.groups), device=DEVICE)
        self.losses = torch.zeros(len(self.rates), device=DEVICE)
        self.slots: list[Any] = []
        self.form: Any = None
        self.frozen: Any = None
        self.num_warm_ups = 0
        self.queued: list[Any] = []
        self.made = self.losses

    def make(self, parts: Any) -> torch.Tensor:
        """Runs an update or queues it; its loss is valid after `flush`."""
        parts = [(each(batch, place), num) for batch, num in parts]  #? place
        tensors = tensors_in(parts)
        form = [num for _, num in parts], [(one.shape, one.dtype) for one in tensors]
        is_known = form == self.form
        if is_known and self.num_warm_ups == 3 and not self.recorded:
            self.record()
        if not (is_known and self.recorded and self.frozen == self.numbers()):
            self.flush()
            return self.run_eagerly(parts, tensors, form)
        if not self.queued:
            self.made = torch.empty_like(self.losses)
        loss = self.made[len(self.queued)]
        self.queued.append((tensors, self.rates_now(), loss))
        if len(self.queued) == len(self.losses):
            self.launch(self.queued)
            self.made.copy_(self.losses)
            self.queued = []
        return loss

    def flush(self) -> None:
        """Launches queued updates: then weights and losses are up to date."""
        for one in self.queued:
            self.launch([one])
            one[2].copy_(self.losses[0])
        self.queued = []

    def launch(self, queued: list[Any]) -> None:
        """Replays one graph for all of these updates."""
        pairs = zip(self.slots, queued, strict=False)
        found = [pair for slot, one in pairs for pair in zip(tensors_in(slot), one[0], strict=True)]
        torch._foreach_copy_([into for into, _ in found], [tensor for _, tensor in found])
        self.copy_rates([rates for _, rates, _ in queued])
        self.recorded[len(queued)].replay()

    def run_eagerly(self, parts: Any, tensors: Any, form: Any) -> torch.Tensor:
        """Runs an update eagerly, on the graph's input tensors if the shapes match."""
        self.copy_rates([self.rates_now()])
        if self.form is None and sum(num for _, num in parts) == self.batch_size:
            self.form = form
            self.slots = [like(parts) for _ in self.losses]
        if form != self.form:
            parts = [(each(batch, torch.clone), num) for batch, num in parts]
            return self.with_rates(0, parts)
        for into, tensor in zip(tensors_in(self.slots[0]), tensors, strict=True):
            into.copy_(tensor)
        if self.num_warm_ups == 3:
            return self.with_rates(0, self.slots[0])
        self.num_warm_ups += 1
        with self.graphs.aside():
            return self.with_rates(0, self.slots[0])

    def record(self) -> None:
        """Captures the larger graph first: its memory is enough for the other."""
        self.frozen = self.numbers()
        for num in sorted({len(self.losses), 1}, reverse=True):
            self.recorded[num] = self.graphs.recorded(functools.partial(self.steps, num))

    def steps(self, num: int) -> None:
        """The updates that a graph contains."""
        for number in range(num):
            self.losses[number].copy_(self.with_rates(number, self.slots[number]))

    def with_rates(self, number: int, parts: Any) -> torch.Tensor:
        """Runs an update with learning rates from a row on the device."""
        own = self.rates_now()
        for group, rate in zip(self.groups, self.rates[number].unbind(), strict=True):
            group["lr"] = rate
        loss = self.make_update(parts)
        for group, rate in zip(self.groups, own, strict=True):
            group["lr"] = rate
        return loss

    def rates_now(self) -> list[Any]:
        """The learning rates that the schedule has set."""
        return [group["lr"] for group in self.groups]

    def copy_rates(self, rows: list[Any]) -> None:
        """Copies rates to the device, after all work launched so far."""
        host = torch.tensor(rows, pin_memory=True)  #? cuda
        host = torch.tensor(rows)  #? !cuda
        self.rates[: len(rows)].copy_(host, non_blocking=True)

    def numbers(self) -> list[Any]:
        """All other settings of the optimizer, which are constants in a graph."""
        moved = ("params", "lr", "initial_lr")
        return [[group[name] for name in group if name not in moved] for group in self.groups]
'''
