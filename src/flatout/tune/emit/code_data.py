"""Text of the programs that `flatout tune --emit code` writes: seeds, and how data is read.

The same draws as in `engine/runtime/rng.py`, `feed.py` and `loader.py`. See `code_lines.py` for the
marks.
"""

SEEDS = '''
def mixed_seed(*parts: int | str) -> int:
    """A seed that depends on all parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_generators(seed: int) -> None:
    """Seeds the CPU generators of torch, Python and, if it is loaded, NumPy."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
'''

STATES = '''
def generator_states() -> tuple[Any, Any, Any]:
    """States of the CPU generators of torch, Python and, if it is loaded, NumPy."""
    numpy: Any = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()


def restore_generators(states: tuple[Any, Any, Any]) -> None:
    """Restores the states that generator_states returned."""
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        numpy: Any = sys.modules["numpy"]
        numpy.random.set_state(states[2])
'''

ORDER = '''
def sample_order(num_samples: int, seed: int, epoch: int) -> torch.Tensor:
    """Indices of the samples in the order of this epoch."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, "order", epoch))
    return torch.randperm(num_samples, generator=generator)
'''

SPANS = '''
def spans(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Start and end of parts of this size; the last one may be smaller."""
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]
'''

EACH = '''
def each(batch: Any, function: Any, *arguments: Any) -> Any:
    """Applies a function to every tensor of a nested batch."""
    if isinstance(batch, dict):
        return {name: each(item, function, *arguments) for name, item in batch.items()}
    if isinstance(batch, (list, tuple)):
        items = [each(item, function, *arguments) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return function(batch, *arguments)
'''

PLACE = '''
def place(item: Any) -> Any:
    """Moves a tensor to the model's device and memory format."""
    if not isinstance(item, torch.Tensor):
        return item.to(DEVICE) if hasattr(item, "to") else item
    if item.dim() == 4:  #? layout
        return item.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)  #? layout
    return item.to(DEVICE, non_blocking=True)
'''

SLICES = '''
def tensors_of(data: Any) -> Any:
    """The underlying tensors of a TensorDataset; other data unchanged."""
    return data.tensors if isinstance(data, Dataset) else data


def count(data: Any) -> int:
    """The number of samples in nested tensors."""
    while not isinstance(data, torch.Tensor):
        data = next(iter(data.values() if isinstance(data, dict) else data))
    return len(data)


def slices(data: Any, order: torch.Tensor, batch_size: int, num_gathered: int) -> Iterator[Any]:
    """Batches of tensors in this order, with their numbers of samples.

    Gathers samples for several batches in one call.
    """
    for part in order.split(num_gathered):
        rows = each(data, torch.index_select, 0, part)  #? !resident
        rows = each(data, torch.index_select, 0, part.to(DEVICE))  #? resident
        for first, last in spans(0, len(part), batch_size):
            yield each(rows, operator.getitem, slice(first, last)), last - first  #? !accumulated
            yield [  #? accumulated
                (each(rows, operator.getitem, slice(start, stop)), stop - start)  #? accumulated
                for start, stop in spans(first, last, $micro_batch_size)  #? accumulated
            ]  #? accumulated
'''

ALL_CPUS = """
# Read before the step's threads are pinned to some of them.
ALL_CPUS = os.sched_getaffinity(0)
"""

USE_CPUS = '''
def use_cpus(cpus: set[int], worker: int) -> None:
    """Lets a loader worker use all CPUs, not only those of the step's threads."""
    os.sched_setaffinity(0, cpus)
'''

UNCHANGED = '''
def unchanged(batch: Any) -> Any:
    """Collates nothing: the item is already a batch."""
    return batch
'''

OWN = '''
def own(item: Any) -> Any:
    """A copy of part of a sample."""
    return item.clone() if isinstance(item, torch.Tensor) else copy.deepcopy(item)
'''

SAMPLES = '''
class Samples(Dataset[Any]):
    """Batches of samples, each with its own seed: workers do not change augmentation."""

    def __init__(self, samples: Any, collate: Any, seed: int) -> None:
        self.samples = samples
        self.collate = collate
        self.seed = seed
        self.kept: dict[int, Any] = {}  #? cached

    def __getitem__(self, key: tuple[int, list[int]]) -> Any:
        epoch, indices = key
        states = generator_states()  #? inline
        batch = self.batch(epoch, indices), len(indices)  #? !accumulated
        batch = [  #? accumulated
            (self.batch(epoch, indices[start:stop]), stop - start)  #? accumulated
            for start, stop in spans(0, len(indices), $micro_batch_size)  #? accumulated
        ]  #? accumulated
        restore_generators(states)  #? inline
        return batch

    def batch(self, epoch: int, indices: list[int]) -> Any:
        """The samples of these indices, collated."""
        return self.collate([self.sample(epoch, index) for index in indices])

    def sample(self, epoch: int, index: int) -> Any:
        """One sample, with the random draws of this epoch."""
        seed_generators(mixed_seed(self.seed, "sample", epoch, index))
        return self.samples[index]  #? !cached
        #= data_path  #? cached
        if index not in self.kept:  #? cached
            self.kept[index] = each(self.samples[index], own)  #? cached
        # `collate` may change its arguments.  #? cached
        return each(self.kept[index], own)  #? cached


def sample_loader(samples: Samples) -> DataLoader[Any]:
    """A loader of the samples whose indices are in its sampler."""
    #= loader  #? !cached
    # The process that caches samples also reads them.  #? cached
    return DataLoader(
        samples,
        batch_size=None,
        sampler=[],
        collate_fn=unchanged,
        num_workers=$num_workers,
        prefetch_factor=$loader_prefetch,  #? workers
        persistent_workers=$loader_persistent,  #? workers
        pin_memory=True,  #? pin
        worker_init_fn=functools.partial(use_cpus, ALL_CPUS),  #? workers pinned
        # A loader draws a number for each epoch: not from the model's generator.
        generator=torch.Generator().manual_seed(0),
    )


def sample_batches(loader: Any, epoch: int, order: torch.Tensor, batch_size: int) -> Any:
    """The loader, with this epoch's samples in its sampler, in this order."""
    # Changed in place: a loader keeps the sampler it was created with.
    loader.sampler[:] = [(epoch, part.tolist()) for part in order.split(batch_size)]
    return loader
'''

STREAM = '''
class Stream(IterableDataset[Any]):
    """An iterable's samples as batches; its draws depend only on seed, epoch and worker."""

    def __init__(self, samples: Any, collate: Any, seed: int, batch_size: int) -> None:
        self.samples = samples
        self.collate = collate
        self.seed = seed
        self.batch_size = batch_size
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()  #? workers
        number = worker.id if worker is not None else 0  #? workers
        seed_generators(mixed_seed(self.seed, "stream", self.epoch, number))  #? workers
        seed_generators(mixed_seed(self.seed, "stream", self.epoch, 0))  #? !workers
        samples = iter(self.samples)
        while batch := list(itertools.islice(samples, self.batch_size)):
            yield self.collate(batch), len(batch)  #? !accumulated
            yield [  #? accumulated
                (self.collate(batch[start:stop]), stop - start)  #? accumulated
                for start, stop in spans(0, len(batch), $micro_batch_size)  #? accumulated
            ]  #? accumulated


def stream_loader(stream: Stream) -> DataLoader[Any]:
    """A loader of a stream's batches."""
    #= loader
    return DataLoader(
        stream,
        batch_size=None,
        collate_fn=unchanged,
        num_workers=$num_workers,
        prefetch_factor=$loader_prefetch,  #? workers
        pin_memory=True,  #? pin
        worker_init_fn=functools.partial(use_cpus, ALL_CPUS),  #? workers pinned
        # A loader draws a number for each epoch: not from the model's generator.
        generator=torch.Generator().manual_seed(0),
    )


def stream_batches(loader: Any, epoch: int) -> Iterator[Any]:
    """The batches of an epoch."""
    stream = loader.dataset
    stream.epoch = epoch
    if hasattr(stream.samples, "set_epoch"):
        stream.samples.set_epoch(epoch)
    yield from loader  #? workers
    # Keeps the iterable's random draws separate from the model's.  #? inline
    batches, own = iter(loader), None  #? inline
    while True:  #? inline
        outer = generator_states()  #? inline
        if own is not None:  #? inline
            restore_generators(own)  #? inline
        batch = next(batches, None)  #? inline
        own = generator_states()  #? inline
        restore_generators(outer)  #? inline
        if batch is None:  #? inline
            return  #? inline
        yield batch  #? inline
'''
