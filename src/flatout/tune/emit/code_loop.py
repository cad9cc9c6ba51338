"""Text of the programs that `flatout tune --emit code` writes: building, updating, validating.

The same arithmetic as in `engine/step/step.py`, `engine/training/loop.py` and
`engine/session/validation.py`. See `code_lines.py` for the marks.
"""

STAND_IN = """
try:
    import flatout  # noqa: F401
except ImportError:
    # The experiment file imports flatout: where that is not installed, a namespace with the
    # same fields will do. The training below does not use flatout.
    stand_in = types.ModuleType("flatout")
    stand_in.__dict__["Experiment"] = types.SimpleNamespace
    sys.modules["flatout"] = stand_in
"""

SAME_KERNEL = '''
def same_kernel() -> tuple[Any, Any]:
    """Contexts of a block's forward pass and of its recomputation in the backward pass."""
    return contextlib.nullcontext(), sdpa_kernel(SDPBackend.$backend)
'''

RECOMPUTED = '''
def recomputed(block: Any, forward: Any) -> Any:
    """A block's forward that saves only its inputs for the backward pass while training."""

    def checkpointed(*inputs: Any, **named: Any) -> Any:
        if not block.training or not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False$kernel_of_block, **named)

    return checkpointed
'''

KEEP_ON = '''
def keep_on(cpus: set[int]) -> None:
    """Pins all threads of this process to these CPUs; new threads inherit it."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cpus)
'''

RETAIN = '''
def retain_freed_memory() -> None:
    """Makes glibc keep freed memory, so that updates need no new pages."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)  # M_MMAP_MAX: no block gets its own mapping.
    libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: the heap is never trimmed.
'''

COMPILED = '''
def compiled(loss: Any) -> Any:
    """The loss, compiled for whole micro-batches; other sizes run uncompiled."""
    options = $compile_options
    options |= torch._inductor.list_mode_options("max-autotune-no-cudagraphs")  #? autotuned
    fast = torch.compile(loss, fullgraph=True, dynamic=$is_dynamic, options=options)

    def compute(model: Any, batch: Any, size: int) -> Any:
        return (fast if $has_code else loss)(model, batch)

    return compute
'''

COMPILED_STEP = '''
def compiled_step(optimizer: Any) -> Any:
    """The optimizer's step, compiled; learning rates and step counts are fp64 tensors in it."""
    own: Any = inspect.unwrap(type(optimizer).step)
    groups, states = optimizer.param_groups, optimizer.state
    rates = [torch.zeros((), dtype=torch.float64) for _ in groups]

    def bare() -> None:
        with torch.no_grad():
            own(optimizer)

    options = $compile_options
    options |= torch._inductor.list_mode_options("max-autotune-no-cudagraphs")  #? autotuned
    fast = torch.compile(bare, fullgraph=True, dynamic=False, options=options)
    num_made = 0

    def step() -> None:
        nonlocal num_made
        num_made += 1
        if num_made == 1:
            # The first step creates the optimizer's state.
            optimizer.step()
            return
        kept = [dict(group) for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            if isinstance(group.get("lr"), float):
                group["lr"] = rate.fill_(group["lr"])
            group.update({name: False for name in ("foreach", "fused") if name in group})
        counts = [(state, state["step"]) for state in states.values() if "step" in state]
        for state, count in counts:
            state["step"] = count.double()
        fast()
        for state, count in counts:
            state["step"] = count.copy_(state["step"])
        for group, before in zip(groups, kept, strict=True):
            group.update(before)

    return step
'''

BUILD = '''
def build(experiment: Any, seed: int) -> tuple[Any, Any, Any]:
    """Model, optimizer and training data, in flatout's order: this gives the same weights."""
    torch.cuda.manual_seed_all(mixed_seed(seed, "model"))  #? cuda
    seed_generators(mixed_seed(seed, "model"))
    model = experiment.model()  #? !cuda
    model = experiment.model().to(DEVICE)  #? cuda
    optimizer = experiment.optimizer(model.$parameters())
    data = experiment.train_data()  #? !tensors
    data = tensors_of(experiment.train_data())  #? tensors
    #= data_path  #? resident
    data = each(data, torch.Tensor.to, DEVICE)  #? resident tensors
    #= num_threads
    torch.set_num_threads($num_threads)
    #= cpu_affinity  #? pinned
    keep_on($cpus)  #? pinned
    #= allocator  #? retained
    retain_freed_memory()  #? retained
    #= deterministic  #? deterministic
    torch.use_deterministic_algorithms(True)  #? deterministic
    # Filling new tensors would cost a pass over memory per operation.  #? deterministic
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore  #? deterministic
    #= precision  #? tf32
    torch.set_float32_matmul_precision("high")  #? tf32
    torch.backends.cudnn.allow_tf32 = $is_tf32  #? cuda
    #= benchmark  #? cuda
    torch.backends.cudnn.benchmark = $is_benchmarking  #? cuda
    #= memory_format  #? layout
    model.to(memory_format=torch.channels_last)  #? layout
    #= precision  #? float8
    use_float8(model)  #? float8
    #= activation_checkpointing  #? recomputed
    for name in $blocks:  #? recomputed_blocks
        block = model.get_submodule(name)  #? recomputed_blocks
        block.forward = recomputed(block, block.forward)  #? recomputed_blocks
    for name in $self_checkpointing:  #? recomputed_by_itself
        own = model.get_submodule(name)  #? recomputed_by_itself
        own.${prefix}_enable({"use_reentrant": False$kernel_of_own})  #? recomputed_by_itself
    #= capture  #? captured
    for group in optimizer.param_groups:  #? captured
        if "capturable" in group:  #? captured
            group["capturable"] = True  #? captured
    # Some of its steps run without a graph.  #? captured
    optimizer._warned_capturable_if_run_uncaptured = True  #? captured
    #= optimizer_implementation  #? implementation
    for group in optimizer.param_groups:  #? implementation
        group.update(foreach=$is_foreach, fused=$is_fused)  #? implementation
    # As torch's constructors do for fused=True: its kernels divide by the scale.  #? fused fp16
    optimizer._step_supports_amp_scaling = True  #? fused fp16
    return model, optimizer, data
'''

MEAN = '''
def mean(losses: list[tuple[torch.Tensor, int]]) -> float:
    """The mean loss over samples; the only place that waits for the device."""
    if not losses:  #? skip
        return math.nan  #? skip
    total, num_samples = 0.0, 0
    values = torch.stack([loss for loss, _ in losses]).tolist()
    for value, (_, size) in zip(values, losses, strict=True):
        total += value * size
        num_samples += size
    return total / num_samples
'''

IS_FINITE = '''
def is_finite(loss: torch.Tensor, parameters: list[torch.Tensor]) -> bool:
    """Whether the loss and every gradient are finite."""
    items = [loss]
    # The scaler checks the gradients itself.  #? fp16
    items += [p.grad for p in parameters if p.grad is not None]  #? !fp16
    return all(bool(item.isfinite().all()) for item in items)
'''

SWAP = '''
def swap(averages: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
    """Swaps the model's weights and their averages."""
    for average, weight in zip(averages, weights, strict=True):
        average.data, weight.data = weight.data, average.data
'''

EVALUATE = '''
def wide(number: Any) -> torch.Tensor:
    """A number in fp64, for sums over many batches."""
    return torch.as_tensor(number, dtype=torch.float64)


@torch.no_grad()
def evaluate(experiment: Any, model: Any, batches: Any) -> dict[str, float]:
    """Means over the validation data; leaves the training's random draws unchanged."""
    totals: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    model.eval()
    with torch.random.fork_rng(devices=[$forked]):
        for batch, size in batches:  #? !accumulated
        for batch, size in itertools.chain.from_iterable(batches):  #? accumulated
            batch = each(batch, place)  #? place
            with torch.autocast(DEVICE.type, dtype=$dtype):  #| autocast
                with sdpa_kernel(SDPBackend.$backend):  #| attention
                    values = {"loss": experiment.loss(model, batch)}  #? !metrics
                    values = dict(experiment.metrics(model, batch))  #? metrics
                    if "loss" not in values:  #? metrics
                        values["loss"] = experiment.loss(model, batch)  #? metrics
            for name, value in values.items():
                if not isinstance(value, (torch.Tensor, float, int, tuple)):  #? metrics
                    continue  # Only flatout shows this.  #? metrics
                total, num = value if isinstance(value, tuple) else (wide(value) * size, size)
                totals[name] = totals.get(name, 0.0) + wide(total)
                counts[name] = counts.get(name, 0.0) + wide(num)
    model.train()
    return {name: float(totals[name]) / (float(counts[name]) or 1.0) for name in totals}
'''

VALIDATION = """
swap(averages, weights)  #? ema
batches = slices(validation, in_order, experiment.batch_size, $num_gathered_on)  #? on_tensors
batches = sample_batches(validation_loader, 0, in_order, experiment.batch_size)  #? on_samples
batches = stream_batches(validation_loader, 0)  #? on_stream
metrics = evaluate(experiment, model, batches)
swap(averages, weights)  #? ema
print(f"step {step}: {metrics}")
num_worse = 0 if metrics[$best] $better best else num_worse + 1  #? early_stop
best = $best_of(best, metrics[$best])  #? early_stop
"""

WHOLE = """
batch = each(batch, place)  #? place !captured
#= precision  #? autocast
#= attention  #? attention
with torch.autocast(DEVICE.type, dtype=$dtype):  #| autocast
    with sdpa_kernel(SDPBackend.$backend):  #| attention
        loss = experiment.loss(model, batch)  #? !counted !compiled_loss
        loss = loss_of(model, batch, size)  #? !counted compiled_loss
        total, counted = experiment.loss(model, batch)  #? counted !compiled_loss
        total, counted = loss_of(model, batch, size)  #? counted compiled_loss
# If nothing was counted the sum is 0: 0 / 1, not 0 / 0.  #? counted
loss = total / (counted + (counted == 0))  #? counted
loss.backward()  #? !fp16
scaler.scale(loss).backward()  #? fp16
"""

PARTS = """
#= micro_batch_size
loss: Any = 0.0
size = sum(num for _, num in parts)
num_counted = 0  #? counted
for batch, num in parts:  #? !counted
for batch, _ in parts:  #? counted !compiled_loss
for batch, num in parts:  #? counted compiled_loss
    batch = each(batch, place)  #? place !captured
    #= precision  #? autocast
    #= attention  #? attention
    with torch.autocast(DEVICE.type, dtype=$dtype):  #| autocast
        with sdpa_kernel(SDPBackend.$backend):  #| attention
            part = experiment.loss(model, batch)  #? !counted !compiled_loss
            part = loss_of(model, batch, num)  #? !counted compiled_loss
            total, counted = experiment.loss(model, batch)  #? counted !compiled_loss
            total, counted = loss_of(model, batch, num)  #? counted compiled_loss
    part = part * (num / size)  #? !counted
    # Divided by the samples to stay in range; corrected once all is counted.  #? counted
    divisor = size if len(parts) > 1 else counted + (counted == 0)  #? counted
    part = total / divisor  #? counted
    num_counted = num_counted + counted  #? counted
    part.backward()  #? !fp16
    scaler.scale(part).backward()  #? fp16
    loss = loss + part.detach()
correction = divisor / (num_counted + (num_counted == 0))  #? counted
for parameter in parameters:  #? counted
    if parameter.grad is not None:  #? counted
        parameter.grad.mul_(correction)  #? counted
loss = loss * correction  #? counted
"""

UPDATE = """
buffers = [buffer.clone() for buffer in model.buffers()]  #? skip
#@ parts  #? accumulated
#@ whole  #? !accumulated
#= nonfinite_loss  #? skip
if is_finite(loss, parameters):  #| skip
    scaler.unscale_(optimizer)  #? clip fp16
    #= clip_norm  #? clip
    torch.nn.utils.clip_grad_norm_(parameters, $clip_norm)  #? clip
    optimizer.step()  #? !fp16 !compiled_step
    make_step()  #? compiled_step
    scaler.step(optimizer)  #? fp16
    scaler.update()  #? fp16
    with torch.no_grad():  #? ema
        for average, weight in zip(averages, weights, strict=True):  #? ema
            average.lerp_(weight, 1 - experiment.ema)  #? ema
    losses.append((loss.detach().float(), size))  #? !captured
else:  #? skip
    # The forward pass has changed BatchNorm's averages, too.  #? skip
    for buffer, kept in zip(model.buffers(), buffers, strict=True):  #? skip
        buffer.copy_(kept)  #? skip
optimizer.zero_grad()
schedule.step()  #? schedule_step !captured
step += 1  #? !captured
"""

CAPTURED_UPDATE = """
losses.append((captured.make([(batch, size)]), size))  #? !accumulated
losses.append((captured.make(parts), sum(num for _, num in parts)))  #? accumulated
schedule.step()  #? schedule_step
step += 1
"""

TRAIN = '''
def train(experiment: Any, seed: int = $seed) -> Any:
    """Trains an experiment; returns its model with the last weights."""
    model, optimizer, data = build(experiment, seed)
    parameters = [one for group in optimizer.param_groups for one in group["params"]]  #? parameters
    schedule = experiment.schedule(optimizer)  #? schedule !schedule_length
    schedule = experiment.schedule(optimizer, total_steps=$total_steps)  #? schedule_length
    #= compiled  #? compiled
    loss_of = compiled(experiment.loss)  #? compiled_loss
    make_step = compiled_step(optimizer)  #? compiled_step
    scaler = torch.amp.GradScaler(DEVICE.type)  #? fp16
    weights = [one for one in model.parameters() if one.is_floating_point()]  #? ema
    averages = [weight.detach().clone() for weight in weights]  #? ema
    loader = sample_loader(Samples(data, $collate, seed))  #? map
    loader = stream_loader(Stream(data, $collate, seed, experiment.batch_size))  #? stream
    validation = experiment.validation_data()  #? validation !on_tensors
    validation = tensors_of(experiment.validation_data())  #? on_tensors
    validation = each(validation, torch.Tensor.to, DEVICE)  #? on_tensors resident
    validation_loader = sample_loader(Samples(validation, $collate, seed))  #? on_samples
    source = Stream(validation, $collate, seed, experiment.batch_size)  #? on_stream
    validation_loader = stream_loader(source)  #? on_stream
    in_order = torch.arange(count(validation))  #? on_tensors
    in_order = torch.arange(len(validation))  #? on_samples
    metrics: dict[str, float] = {}  #? plateau validate_steps
    best, num_worse = $worst, 0  #? early_stop
    step = 0
    torch.cuda.manual_seed_all(mixed_seed(seed, "training"))  #? cuda
    seed_generators(mixed_seed(seed, "training"))
    model.train()
  #? captured
    def make_update(parts: Any) -> torch.Tensor:  #? captured
        batch, size = parts[0]  #? captured !accumulated
        #@ update  #? captured
        return loss.detach().float()  #? captured
  #? captured
    captured = CapturedSteps(make_update, optimizer, experiment.batch_size)  #? captured
    for epoch in range($epochs):  #? !steps
    for epoch in itertools.count():  #? steps
        losses: list[tuple[torch.Tensor, int]] = []
        order = sample_order($num_samples, seed, epoch)  #? indexed shuffled
        order = torch.arange($num_samples)  #? indexed !shuffled
        updates = slices(data, order, experiment.batch_size, $num_gathered)  #? tensors
        updates = sample_batches(loader, epoch, order, experiment.batch_size)  #? map
        updates = stream_batches(loader, epoch)  #? stream
        updates = itertools.islice(updates, experiment.steps - step)  #? steps
        for batch, size in updates:  #? !accumulated
        for parts in updates:  #? accumulated
            #@ update  #? !captured
            #@ captured_update  #? captured
            if step % $validate_every == 0:  #? validate_steps
                captured.flush()  #? validate_steps captured
                #@ validation  #? validate_steps
                if num_worse >= experiment.early_stop:  #? early_stop validate_steps
                    break  #? early_stop validate_steps
        captured.flush()  #? captured
        loss_of_epoch = mean(losses)
        print(f"epoch {epoch + 1}: loss {loss_of_epoch}")
        if not math.isfinite(loss_of_epoch):  #? !skip
            raise FloatingPointError(f"the loss of epoch {epoch + 1} is {loss_of_epoch}")  #? !skip
        #@ validation  #? validation !validate_steps
        schedule.step()  #? schedule_epoch
        schedule.step(metrics[$best])  #? plateau !validate_steps
        if metrics:  #? plateau validate_steps
            schedule.step(metrics[$best])  #? plateau validate_steps
        if num_worse >= experiment.early_stop:  #? early_stop
            break  #? early_stop
        if step >= experiment.steps:  #? steps
            break  #? steps
    if step % $validate_every:  #? validate_steps
        #@ validation  #? validate_steps
    # The averaged weights are saved.  #? ema
    swap(averages, weights)  #? ema
    return model
'''

MAIN = """
if __name__ == "__main__":
    # The experiment may import modules of its folder.  #? file
    sys.path.insert(0, $folder)  #? file
    # A built-in experiment needs flatout to be installed.  #? !file
    described = importlib.import_module($module)
    chosen = described.experiment($arguments)
    trained = train(chosen)
    torch.save(trained.state_dict(), $weights_file)
"""
