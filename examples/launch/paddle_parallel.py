"""paddle.distributed: DataParallel over the nodes.

flatout launch --framework paddle --nodes 2 examples/launch/paddle_parallel.py
"""

from __future__ import annotations

import platform

import paddle
import paddle.distributed as dist

BATCH, STEPS = 64, 20


def main() -> None:
    """Trains one layer; the PADDLE_ variables have the other ranks' addresses."""
    dist.init_parallel_env()
    paddle.seed(0)
    model = paddle.DataParallel(paddle.nn.Linear(8, 1))
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    # Every node has batches of its own.
    paddle.seed(dist.get_rank())
    for _ in range(STEPS):
        loss_on(model).backward()
        optimizer.step()
        optimizer.clear_grad()
    # All have the same model now, so also the same loss on a batch that is the same for all.
    paddle.seed(1000)
    with paddle.no_grad():
        loss = float(loss_on(model))
    place = f"rank {dist.get_rank()} of {dist.get_world_size()} on {platform.node()}"
    print(f"{place}: loss {loss:.6f}", flush=True)


def loss_on(model: paddle.nn.Layer) -> paddle.Tensor:
    """Of one batch that Paddle's generator draws."""
    inputs = paddle.randn([BATCH, 8])
    wanted = paddle.arange(8, dtype="float32")
    return paddle.nn.functional.mse_loss(model(inputs)[:, 0], inputs @ wanted)


if __name__ == "__main__":
    main()
