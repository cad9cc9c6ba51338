"""The text of a program whose linear layers multiply in 8 bits; see `code_lines.py`."""

FLOAT8 = '''
class Float8Product(torch.autograd.Function):
    """inputs @ weight.T in 8 bits; rows are zero-padded to a multiple of 16."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x, scale_x = rounded(filled(inputs), torch.float8_e4m3fn)
        w, scale_w = rounded(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(x, scale_x, w, scale_w)
        ctx.dtypes = inputs.dtype, weight.dtype
        return multiplied(x, w.t(), scale_x, scale_w, is_fast=True)[: len(inputs)]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, scale_x, w, scale_w = ctx.saved_tensors
        g, scale_g = rounded(filled(gradients[0]), torch.float8_e5m2)
        of_x = of_w = None
        if ctx.needs_input_grad[0]:
            product = multiplied(g, w.t().contiguous().t(), scale_g, scale_w)
            of_x = product[: len(gradients[0])].to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            product = multiplied(g.t().contiguous(), x.t().contiguous().t(), scale_g, scale_x)
            of_w = product.to(ctx.dtypes[1])
        return of_x, of_w


def rounded(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor in 8 bits, and the scale that restores its values."""
    largest = tensor.detach().abs().amax().float().clamp(min=1e-12)
    scale = largest / torch.finfo(dtype).max
    return (tensor.detach().float() / scale).to(dtype), scale


def filled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, zero-padded to a multiple of 16 rows."""
    missing = -len(tensor) % 16
    return torch.nn.functional.pad(tensor, (0, 0, 0, missing)) if missing else tensor


def multiplied(a: Any, b: Any, scale_a: Any, scale_b: Any, is_fast: bool = False) -> torch.Tensor:
    """The product of two 8-bit tensors, in bf16."""
    return torch._scaled_mm(
        a,
        b,
        scale_a=scale_a,
        scale_b=scale_b,
        out_dtype=torch.bfloat16,
        use_fast_accum=is_fast,
    )


def use_float8(model: Any) -> None:
    """Makes linear layers whose sizes are multiples of 16 multiply in 8 bits."""

    def forward(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
        result = Float8Product.apply(inputs.flatten(0, -2), layer.weight)
        if layer.bias is not None:
            result = result + layer.bias.to(result.dtype)
        return result.unflatten(0, inputs.shape[:-1]) if inputs.dim() != 2 else result

    for module in model.modules():
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.float32:
            if not any(size % 16 for size in module.weight.shape):
                module.forward = functools.partial(forward, module)
'''
