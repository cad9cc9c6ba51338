"""Text of the settings that `flatout tune --emit lightning|hf|accelerate` writes.

Argument names are those of Lightning 2.5, transformers 4.46, Accelerate 1.2 and later versions; one
that is newer says so. See `code_lines.py` for the marks.
"""

ROWS = '''
class Rows(Dataset):
    """Tensors that a loader indexes once per batch, not once per sample."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        first = self.tensors
        while not isinstance(first, torch.Tensor):
            first = next(iter(first.values() if isinstance(first, dict) else first))
        return len(first)

    def __getitems__(self, indices):
        rows = torch.tensor(indices)  #? !resident
        rows = torch.tensor(indices, device=DEVICE)  #? resident
        return each(self.tensors, torch.index_select, 0, rows)
'''

CONTIGUOUS = '''
def make_contiguous(module, state, prefix, metadata):
    """Makes saved weights contiguous, as safetensors requires."""
    for name in list(state):
        state[name] = state[name].contiguous()
'''

OPTIMIZERS = '''
class OptimizerImplementation(lightning.Callback):
    """Sets how the optimizers of `configure_optimizers` compute their steps."""

    def on_train_start(self, trainer, module):
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group.update(foreach=$is_foreach, fused=$is_fused)
'''

VISIBLE = """
#= device  #? cuda !lightning
os.environ["CUDA_VISIBLE_DEVICES"] = "$gpu"  #? cuda !lightning
"""

# Settings of torch, and of what the three tools get: network, optimizer, data.
SHARED = """
#= num_threads
torch.set_num_threads($num_threads)
#= cpu_affinity  #? pinned
keep_on($cpus)  #? pinned
#= allocator  #? retained
retain_freed_memory()  #? retained
#= deterministic  #? deterministic !lightning
torch.use_deterministic_algorithms(True)  #? deterministic !lightning
# Filling new tensors would cost a pass over memory per operation.  #? deterministic
torch.utils.deterministic.fill_uninitialized_memory = False  #? deterministic
#= precision  #? cuda !hf
torch.set_float32_matmul_precision("high")  #? tf32 !hf
torch.backends.cudnn.allow_tf32 = $is_tf32  #? cuda !hf
#= benchmark  #? cuda !lightning
torch.backends.cudnn.benchmark = $is_benchmarking  #? cuda !lightning
#= memory_format  #? layout
# The first convolution converts its input, too.  #? layout
$network.to(memory_format=torch.channels_last)  #? layout
model.register_state_dict_post_hook(make_contiguous)  #? layout hf
#= activation_checkpointing  #? recomputed !own_argument
for name in $blocks:  #? recomputed_blocks
    block = model.get_submodule(name)  #? recomputed_blocks
    block.forward = recomputed(block, block.forward)  #? recomputed_blocks
for name in $self_checkpointing:  #? enabled_by_hand
    own = model.get_submodule(name)  #? enabled_by_hand
    own.${prefix}_enable({"use_reentrant": False})  #? enabled_by_hand
#= optimizer_implementation  #? changed_groups
for group in optimizer.param_groups:  #? changed_groups
    group.update(foreach=$is_foreach, fused=$is_fused)  #? changed_groups
#= data_path  #? tensors
dataset = Rows(tensors)  #? tensors !resident
dataset = Rows(each(tensors, torch.Tensor.to, DEVICE))  #? resident
"""

LOADER = """
loader = DataLoader(
    dataset,
    batch_size=$batch_size,
    shuffle=True,  #? indexed shuffled
    collate_fn=unchanged,  #? tensors
    collate_fn=collate,  #? collated
    #= loader_workers  #? read
    num_workers=$num_workers,  #? read
    #= loader_prefetch  #? workers
    prefetch_factor=$loader_prefetch,  #? workers
    #= loader_persistent  #? workers
    persistent_workers=$loader_persistent,  #? workers
    #= loader_pin_memory  #? pin
    pin_memory=True,  #? pin
)
"""

LIGHTNING = """
#= compiled  #? compiled_loss
#= compile_mode  #? compiled_loss
# Not the module: `self.log` in training_step cannot be compiled.  #? compiled_loss
model.compile(mode="$mode", dynamic=$is_dynamic)  #? compiled_loss
trainer = lightning.Trainer(
    max_epochs=epochs,  #? !steps
    max_steps=steps,  #? steps
    #= device
    accelerator="cpu",  #? !cuda
    devices=1,  #? !cuda
    accelerator="gpu",  #? cuda
    devices=[$gpu],  #? cuda
    #= precision  #? !cuda
    precision="$precision",
    #= micro_batch_size
    accumulate_grad_batches=$num_parts,
    #= clip_norm
    gradient_clip_val=$clip_norm,
    #= deterministic
    deterministic=$is_deterministic,
    #= benchmark
    benchmark=$is_benchmarking,
    #= optimizer_implementation  #? implementation
    #= checkpoint_every  #? checkpoints
    callbacks=[$callbacks],  #? callbacks
)
#= attention  #? attention
with sdpa_kernel(SDPBackend.$backend):  #| attention
    trainer.fit(module, loader)
"""

TRANSFORMERS = """
# What is not about speed is the Trainer's: unless lr_scheduler_type is set, the learning rate falls
# linearly to 0.
arguments = TrainingArguments(
    num_train_epochs=epochs,  #? !steps
    max_steps=steps,  #? steps
    #= device  #? !cuda
    use_cpu=True,  #? !cuda
    #= precision  #? precise
    bf16=True,  #? autocast !fp16
    fp16=True,  #? fp16
    tf32=$is_tf32,  #? cuda
    #= micro_batch_size
    per_device_train_batch_size=$batch_size,
    gradient_accumulation_steps=$num_parts,
    #= clip_norm
    max_grad_norm=$largest_norm,
    #= compiled  #? compiled_loss
    torch_compile=True,  #? compiled_loss
    #= compile_mode  #? compiled_loss !dynamic
    torch_compile_mode="$mode",  #? compiled_loss
    #= activation_checkpointing  #? own_argument
    $prefix=True,  #? own_argument
    ${prefix}_kwargs={"use_reentrant": False},  #? own_argument
    #= loader_workers  #? read
    dataloader_num_workers=$num_workers,  #? read
    #= loader_prefetch  #? workers
    dataloader_prefetch_factor=$loader_prefetch,  #? workers
    #= loader_persistent  #? workers
    dataloader_persistent_workers=$loader_persistent,  #? workers
    #= loader_pin_memory  #? read
    dataloader_pin_memory=$is_pinning,  #? read
    dataloader_pin_memory=False,  #? !read
    # Batches in pinned memory are copied while the GPU computes.  #? pin
    accelerator_config={"non_blocking": True},  #? pin
    # Rows returns whole batches, which have no columns to remove.  #? tensors
    remove_unused_columns=False,  #? tensors
    # Of transformers 5; before, override Trainer._get_train_sampler.  #? indexed !shuffled
    train_sampling_strategy="sequential",  #? indexed !shuffled
    # Checking each loss would wait for the GPU.  #? cuda
    logging_nan_inf_filter=False,  #? cuda
    #= checkpoint_every  #? checkpoints
    save_strategy="steps",  #? checkpoints
    save_steps=$checkpoint_every,  #? checkpoints
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=dataset,
    data_collator=unchanged,  #? tensors
    data_collator=collate,  #? collated
    optimizers=(optimizer, None),
)
#= attention  #? attention
with sdpa_kernel(SDPBackend.$backend):  #| attention
    trainer.train()
"""

ACCELERATE = """
accelerator = Accelerator(
    #= device  #? !cuda
    cpu=True,  #? !cuda
    #= precision  #? !cuda
    mixed_precision="$mixed_precision",
    #= micro_batch_size
    gradient_accumulation_steps=$num_parts,
    #= compiled  #? compiled_loss
    #= compile_mode  #? compiled_loss
    dynamo_plugin=TorchDynamoPlugin(  #? compiled_loss
        backend="inductor",  #? compiled_loss
        mode="$mode",  #? compiled_loss
        dynamic=$is_dynamic,  #? compiled_loss
    ),  #? compiled_loss
    # Batches in pinned memory are copied while the GPU computes.  #? pin
    dataloader_config=DataLoaderConfiguration(non_blocking=True),  #? pin
)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
model.train()
#= attention  #? attention
with sdpa_kernel(SDPBackend.$backend):  #| attention
    for _ in range(epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                with accelerator.autocast():  #| autocast
                    loss = loss_of(model, batch)  #? !counted
                    total, num_counted = loss_of(model, batch)  #? counted
                    loss = total / num_counted  #? counted
                accelerator.backward(loss)
                #= clip_norm  #? clip
                if accelerator.sync_gradients:  #? clip
                    accelerator.clip_grad_norm_(model.parameters(), $clip_norm)  #? clip
                optimizer.step()
                optimizer.zero_grad()
"""
