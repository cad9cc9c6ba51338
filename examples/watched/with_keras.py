"""Keras on torch: `fit` on random images."""

import argparse
import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

keras.utils.set_random_seed(0)
images = numpy.random.default_rng(0).normal(size=(2048, 16, 16, 1)).astype("float32")
labels = (images.mean(axis=(1, 2, 3)) > 0).astype("int32")
model = keras.Sequential(
    [
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(2),
    ]
)
model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(images, labels, batch_size=32, epochs=options.epochs, verbose=2)
print(f"final loss {history.history['loss'][-1]:.9f}")
