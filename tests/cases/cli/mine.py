"""What the stand-in for the engine is told; the command line must not run this file."""


def experiment(
    lr: float = 1e-3, mode: str = "finish", steps: int = 6, pause: float = 0.02, hold: str = ""
):
    raise SystemExit("somebody ran this file")
