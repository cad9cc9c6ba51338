"""Advice on the exceptions that users' own code raises most often, by their messages.

Data alone: a pattern that an exception's text matches, and the fix; the pattern's groups fill it.
"""

from __future__ import annotations

import re

_LABELS = "class labels are numbers from 0 to one less than the number of classes"
_NO_BACKWARD = (
    "return the loss without calling backward(), zero_grad() or the optimizer's step(): flatout "
    "calls them"
)
_NO_RETURN = "a function returned None: look for a missing `return`, in `forward` for example"
_TENSORS = "convert it to tensors: torch.from_numpy(array), or torch.tensor(values)"
_FLOATS = "use one dtype: call .float() on the data; NumPy arrays are float64 by default"
_INTEGERS = "give the class labels as integers: labels.long()"

_ADVICE: tuple[tuple[str, str], ...] = (
    (r"backward through the graph a second time", _NO_BACKWARD),
    (r"expected scalar type Long but found (?:Float|Double)", _INTEGERS),
    (r"expected target dtype to be Long or Byte", _INTEGERS),
    (r"\"?nll_loss.*not implemented for '(?:Float|Int|Double|Char|Short)'", _INTEGERS),
    (r"Target (-?\d+) is out of bounds", f"{_LABELS}: one of them is {{0}}; subtract 1 if they "
     "start at 1, or give the model more outputs"),
    (r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)", "the layer "
     "takes {2} numbers per sample and gets {1}: flatten the input, or make it "
     "nn.Linear({1}, {3})"),
    (r"expected input\[.*\] to have (\d+) channels, but got (\d+) channels", "the layer takes {0} "
     "channels and gets {1}: the order is (samples, channels, height, width)"),
    (r"must be Tensor, not NoneType", _NO_RETURN),
    (r"'NoneType' object (?:has no attribute|is not)", _NO_RETURN),
    (r"must be Tensor, not (?:numpy\.)?(?:ndarray|list|tuple|int|float)", _TENSORS),
    (r"'numpy\.ndarray' object has no attribute", _TENSORS),
    (r"must have the same dtype|same dtype, but got|Found dtype (?:Double|Long|Int)|"
     r"expected scalar type (?:Float|Double) but found", _FLOATS),
    (r"Expected floating point type for target|result type Float can't be cast to", _FLOATS),
    (r"'generator' object has no attribute '(?:parameters|named_parameters)'", "`optimizer` "
     "receives the model's parameters, not the model: optimizer=lambda parameters: "
     "torch.optim.AdamW(parameters, lr=...)"),
    (r"optimizer got an empty parameter list", "make sure the model has weights, and make a list "
     "of the parameters if they are read twice: parameters = list(parameters)"),
    (r"(?:too many|not enough) values to unpack", "a batch has the structure of the data: for a "
     "tuple of two tensors, `inputs, labels = batch`; for one tensor, the tensor itself"),
    (r"Expected more than 1 value per channel", "a batch of one sample has no statistics: use "
     "another batch_size, so that the last batch has more, or GroupNorm"),
    (r"indices should be .* on the same device|Expected all tensors to be on the same device",
     "create tensors on the batch's device: torch.zeros(3, device=inputs.device); register those "
     "of the model with register_buffer"),
    (r"Using a target size .* different to the input size|size of tensor a \((\d+)\) must match "
     r"the size of tensor b \((\d+)\)", "print both shapes; one has a dimension of size 1 too few "
     "or too many: labels.unsqueeze(1), or scores.squeeze(1)"),
    (r"leaf Variable that requires grad is being used in an in-place operation",
     "do not change weights in place; the optimizer does it"),
    (r"Module \[(\w+)\] is missing the required \"forward\" function|"
     r"missing the required \"forward\"", "define `forward(self, inputs)` in the model's class"),
    (r"cannot assign module before Module.__init__\(\) call|has no attribute '_modules'",
     "call super().__init__() first in the model's __init__"),
)  # fmt: skip


def advice_on(text: str) -> str | None:
    """Advice on an exception with this message; None if nothing particular is known."""
    for pattern, fix in _ADVICE:
        match = re.search(pattern, text)
        if match is not None:
            return fix.format(*match.groups()) if match.groups() else fix
    return None
