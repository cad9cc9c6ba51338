"""Text of the programs that `flatout tune --emit code` writes: updates in CUDA graphs.

The same order of operations as in `engine/capture.py`. See `code_lines.py` for the marks.
"""

GRAPHS = '''
class Graphs:
    """Records what an action asks the GPU to do; all recordings share a pool of memory."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream(DEVICE)
        self.pool = torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """On the stream of the recordings, to which the workspaces of libraries belong."""
        current = torch.cuda.current_stream(DEVICE)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)

    def recorded(self, action: Any) -> torch.cuda.CUDAGraph:
        """A graph of the action, of which nothing is done."""
        graph = torch.cuda.CUDAGraph()
        # A thread that pins memory meanwhile would break a capture that is everybody's.
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
    """An update's batches of that form, in memory of their own."""
    return [(each(batch, torch.zeros_like), num) for batch, num in parts]


class CapturedSteps:
    """Updates in CUDA graphs, launched $steps_per_launch at a time.

    A graph repeats kernels with the addresses that they were recorded with. So inputs, learning
    rates and losses are in tensors that stay where they are. The first three updates are made one
    operation after the other, and so is every batch of another form than the first whole one.
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
        self.laid_aside: list[Any] = []
        self.made = self.losses

    def make(self, parts: Any) -> torch.Tensor:
        """Makes an update or lays it aside; its loss is there once `finish` was called."""
        parts = [(each(batch, place), num) for batch, num in parts]  #? place
        tensors = tensors_in(parts)
        form = [num for _, num in parts], [(one.shape, one.dtype) for one in tensors]
        is_known = form == self.form
        if is_known and self.num_warm_ups == 3 and not self.recorded:
            self.record()
        if not (is_known and self.recorded and self.frozen == self.numbers()):
            self.finish()
            return self.made_as_usual(parts, tensors, form)
        if not self.laid_aside:
            self.made = torch.empty_like(self.losses)
        loss = self.made[len(self.laid_aside)]
        self.laid_aside.append((tensors, self.rates_now(), loss))
        if len(self.laid_aside) == len(self.losses):
            self.launch(self.laid_aside)
            self.made.copy_(self.losses)
            self.laid_aside = []
        return loss

    def finish(self) -> None:
        """Launches what is laid aside: after it, weights and losses are those of all updates."""
        for one in self.laid_aside:
            self.launch([one])
            one[2].copy_(self.losses[0])
        self.laid_aside = []

    def launch(self, laid_aside: list[Any]) -> None:
        """One graph for all of them."""
        pairs = zip(self.slots, laid_aside, strict=False)
        found = [pair for slot, one in pairs for pair in zip(tensors_in(slot), one[0], strict=True)]
        torch._foreach_copy_([into for into, _ in found], [tensor for _, tensor in found])
        self.put_rates([rates for _, rates, _ in laid_aside])
        self.recorded[len(laid_aside)].replay()

    def made_as_usual(self, parts: Any, tensors: Any, form: Any) -> torch.Tensor:
        """One operation after the other, on the tensors that a graph reads if the form is its."""
        self.put_rates([self.rates_now()])
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
        """The graph of most steps first: its memory suffices for the other."""
        self.frozen = self.numbers()
        for num in sorted({len(self.losses), 1}, reverse=True):
            self.recorded[num] = self.graphs.recorded(functools.partial(self.steps, num))

    def steps(self, num: int) -> None:
        """What a graph of so many updates holds."""
        for number in range(num):
            self.losses[number].copy_(self.with_rates(number, self.slots[number]))

    def with_rates(self, number: int, parts: Any) -> torch.Tensor:
        """An update that reads its learning rates from a row on the device."""
        own = self.rates_now()
        for group, rate in zip(self.groups, self.rates[number].unbind(), strict=True):
            group["lr"] = rate
        loss = self.make_update(parts)
        for group, rate in zip(self.groups, own, strict=True):
            group["lr"] = rate
        return loss

    def rates_now(self) -> list[Any]:
        """The learning rates as the schedule has left them."""
        return [group["lr"] for group in self.groups]

    def put_rates(self, rows: list[Any]) -> None:
        """Brings rates to where updates read them, behind all that was launched before."""
        host = torch.tensor(rows, pin_memory=True)  #? cuda
        host = torch.tensor(rows)  #? !cuda
        self.rates[: len(rows)].copy_(host, non_blocking=True)

    def numbers(self) -> list[Any]:
        """All other numbers of the optimizer, which a graph has as they were."""
        moved = ("params", "lr", "initial_lr")
        return [[group[name] for name in group if name not in moved] for group in self.groups]
'''
