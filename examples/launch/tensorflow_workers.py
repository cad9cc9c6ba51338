"""MultiWorkerMirroredStrategy: every node has a share of each batch, and all have one model.

flatout launch --framework tensorflow --nodes 2 examples/launch/tensorflow_workers.py
"""

from __future__ import annotations

import json
import os
import platform

import numpy as np
import tensorflow as tf

BATCH, STEPS = 128, 20


def main() -> None:
    """Trains one layer; TF_CONFIG has the other workers' addresses."""
    # Before anything else of TensorFlow: it opens this node's server.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    with strategy.scope():
        weights = tf.Variable(tf.zeros([8, 1]))
    wanted = np.arange(8, dtype="float32")[:, None]
    dice = np.random.default_rng(task["index"])
    size = BATCH // strategy.num_replicas_in_sync

    @tf.function
    def step(inputs: tf.Tensor, targets: tf.Tensor) -> None:
        def on_node(inputs: tf.Tensor, targets: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((inputs @ weights - targets) ** 2)
            gradient = tape.gradient(loss, weights)
            context = tf.distribute.get_replica_context()
            mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
            weights.assign_sub(0.1 * mean)

        strategy.run(on_node, args=(inputs, targets))

    for _ in range(STEPS):
        inputs = dice.standard_normal((size, 8), dtype="float32")
        step(tf.constant(inputs), tf.constant(inputs @ wanted))
    # All have the same weights now, so also the same loss on a batch that is the same for all.
    inputs = np.random.default_rng(1000).standard_normal((BATCH, 8), dtype="float32")
    loss = np.mean((inputs @ (weights.numpy() - wanted)) ** 2)
    place = f"worker {task['index']} of {strategy.num_replicas_in_sync} on {platform.node()}"
    print(f"{place}: loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
