"""Training steps with Paddle, and Paddle's own check of its installation."""

import contextlib
import io
import json
import sys
from typing import Any

import paddle
from paddle.nn import functional


def losses(problem: dict[str, Any], device: str) -> list[float]:
    """The losses before the first step and after each, computed on a device."""
    paddle.set_device(device)

    def parameter(values: Any) -> Any:
        tensor = paddle.to_tensor(values, dtype="float32")
        return paddle.create_parameter(
            tensor.shape, "float32", default_initializer=paddle.nn.initializer.Assign(tensor)
        )

    images_nchw = paddle.to_tensor(problem["images"], dtype="float32").unsqueeze(1)
    labels = paddle.to_tensor(problem["labels"], dtype="int64")
    kernel = paddle.to_tensor(problem["kernel"], dtype="float32")
    kernel_oihw = parameter(kernel.transpose([2, 0, 1]).unsqueeze(1))
    matrix = parameter(problem["matrix"])
    optimizer = paddle.optimizer.SGD(problem["lr"], parameters=[kernel_oihw, matrix])
    all_losses = []
    for _ in range(problem["steps"] + 1):
        maps_nhwc = paddle.tanh(functional.conv2d(images_nchw, kernel_oihw)).transpose([0, 2, 3, 1])
        loss = functional.cross_entropy(maps_nhwc.flatten(1) @ matrix, labels)
        all_losses.append(float(loss))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    return all_losses


def own_check() -> list[str]:
    """The output of `paddle.utils.run_check`: a small network in both of Paddle's modes, then on
    all devices.

    Raises:
        Whatever it raises where not even one device works.
    """
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            paddle.utils.run_check()
    except Exception as error:
        # It raises as well where one device works, and several do not work together.
        if "works well on 1 " not in output.getvalue():
            raise
        return [*_lines(output.getvalue()), f"several devices together: {error}"[:300]]
    return _lines(output.getvalue())


def _lines(text: str) -> list[str]:
    words = ("works well on", "ONLY for single")
    return [line.strip() for line in text.splitlines() if any(word in line for word in words)]


def main() -> None:
    """Reads the problem, prints what came out."""
    problem = json.load(sys.stdin)
    report: dict[str, Any] = {"version": paddle.__version__, "cpu": losses(problem, "cpu")}
    if problem["device"] == "gpu":
        if not paddle.device.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
            sys.exit("paddle.device.cuda.device_count() is 0")
        report |= {
            "device_name": paddle.device.cuda.get_device_name(0),
            "gpu": losses(problem, "gpu:0"),
        }
    report["checks"] = own_check()
    print("\n" + json.dumps(report))


if __name__ == "__main__":
    main()
