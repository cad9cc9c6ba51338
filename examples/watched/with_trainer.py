"""The Trainer of Transformers: a tiny GPT-2 with random weights, on random tokens."""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

set_seed(0)
texts = [torch.randint(0, 128, (64,)) for _ in range(512)]
samples = [{"input_ids": text, "labels": text} for text in texts]
config = GPT2Config(
    vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=None,
    eos_token_id=None,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=folder, num_train_epochs=options.epochs, per_device_train_batch_size=8,
            logging_steps=16, save_strategy="no", report_to=[], use_cpu=True,
        ),
        train_dataset=samples,
    )  # fmt: skip
    result = trainer.train()
print(f"final loss {result.training_loss:.9f}")
