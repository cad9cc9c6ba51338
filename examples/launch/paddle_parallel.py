"""paddle.distributed: DataParallel over the nodes.

flatout launch --framework paddle --nodes 2 examples/launch/paddle_parallel.py
"""

from __future__ import annotations

import paddle
import paddle.distributed as dist

STEPS = 60


def main() -> None:
    """Trains one layer; the PADDLE_ variables tell who the others are."""
    dist.init_parallel_env()
    paddle.seed(0)
    model = paddle.DataParallel(paddle.nn.Linear(8, 1))
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    wanted = paddle.arange(8, dtype="float32")
    paddle.seed(dist.get_rank())
    loss = paddle.zeros([1])
    for _ in range(STEPS):
        inputs = paddle.randn([64, 8])
        loss = paddle.nn.functional.mse_loss(model(inputs)[:, 0], inputs @ wanted)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {float(loss):.6f}", flush=True)


if __name__ == "__main__":
    main()
