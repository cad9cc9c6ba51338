"""Lines that trainings, installers and services print when nothing is wrong."""

from __future__ import annotations

import random

NOISE = (
    "Epoch {a}: {b}%|#####     | {c}/{d} [00:{e}<00:{f}, {g}.{h}it/s, loss=0.{a}{b}, v_num=3]",
    "step {d} loss 0.{c}{a} lr 1e-0{g} grad_norm 0.{b} tokens/s {c}{d} gpu_mem {g}.{h} GiB",
    "2026-11-21 10:{e}:{f},{d} - INFO - root - saved checkpoint to runs/{a}/checkpoint-{d}.pt",
    "[rank{g}]: iteration {d}/{c}{d} | elapsed time per iteration (ms): {c}.{a} | loss scale: 1.0",
    "Requirement already satisfied: numpy>=1.{a} in ./lib/python3.12/site-packages (2.{g}.{h})",
    "  warnings.warn('The parameter pretrained is deprecated since 0.{a}, use weights instead.')",
    "host:{d}:{c} [{g}] NCCL INFO Channel {a}/0 : {g}[{g}] -> {h}[{h}] via P2P/CUMEM",
    "I0000 00:00:17{d}.{c} {d} cuda_executor.cc:{d}] successful NUMA node read had negative value",
    "Downloading shards: {b}%|####  | {g}/{h} [00:{e}<00:{f}]",
    "evaluating: accuracy 0.{b}{a} f1 0.{a}{b} on {d} samples in {g}.{h} s",
    "(RayTrainWorker pid={d}) {{'loss': 0.{a}{c}, 'epoch': {a}}}",
    "192.168.{a}.{b} - - [21/Nov/2026:10:{e}:{f} +0000] \"POST /v2/infer HTTP/1.1\" 200 {d}",
    "[  {d}.{c}] usb {g}-{h}: new high-speed USB device number {a} using xhci_hcd",
    "100%|##########| {d}/{d} [00:{e}<00:00, {c}.{a}B/s]",
    "",
)  # fmt: skip


def noise_line(draw: random.Random) -> str:
    """A random line, with random numbers in it."""
    return draw.choice(NOISE).format(
        a=draw.randrange(10, 99), b=draw.randrange(10, 99), c=draw.randrange(100, 999),
        d=draw.randrange(1000, 9999), e=draw.randrange(10, 59), f=draw.randrange(10, 59),
        g=draw.randrange(1, 9), h=draw.randrange(1, 9),
    )  # fmt: skip
