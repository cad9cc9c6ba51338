"""An exported file in words, for the code that prints it."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.cli.render.wording import home_text
from flatout.schema.export_protocol import ExportCheck, Exported
from flatout.schema.serve_model import TensorSpec
from flatout.schema.units import bytes_text, counted_text


def exported_lines(exported: Exported) -> Iterator[str]:
    """The file, what it takes and gives, and how it was checked."""
    facts = exported.facts
    size = bytes_text(exported.size_bytes)
    opset = f", opset {exported.opset}" if exported.opset is not None else ""
    yield f"written   {home_text(exported.path)} ({size}, {facts.precision}{opset})"
    if facts.inputs:
        yield f"takes     {_specs_text(facts.inputs)}"
    if facts.outputs:
        yield f"gives     {_specs_text(facts.outputs)}"
    if facts.preprocessing:
        yield f"note      {facts.preprocessing}"
    yield f"checked   {_check_text(exported.checked)}"
    if exported.form in ("onnx", "pt2"):
        yield f"next      flatout serve {home_text(exported.path)}"


def _specs_text(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype} {spec.shape_text}" for spec in specs)


def _check_text(check: ExportCheck) -> str:
    sizes = ", ".join(map(str, check.batch_sizes))
    samples = counted_text(check.num_samples, f"{check.data} sample")
    if check.metric is not None and check.before is not None and check.after is not None:
        return (
            f"{check.metric} {check.before:.4f} before, {check.after:.4f} in int8 "
            f"({samples}; it may fall by {check.allowed_fall})"
        )
    differing = "equal to the last digit"
    if check.difference:
        differing = (
            f"differing by {check.difference:.1e} of the largest number "
            f"({check.tolerance:g} allowed)"
        )
    return f"same answers as the run: {samples} in batches of {sizes}, {differing}"
