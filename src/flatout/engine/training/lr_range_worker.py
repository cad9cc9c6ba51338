"""A range test's process: `python -m flatout.engine.training.lr_range_worker`."""

from __future__ import annotations

import traceback

from flatout.engine.runtime.fast_import import import_quickly

if __name__ == "__main__":
    # Before all that imports it.
    import_quickly("torch")

from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.runtime.lazy_compiler import defer_compiler_on_cpu
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.training.lr_range import swept
from flatout.schema.finding import finding_from, internal_error
from flatout.schema.lr_range import LrRangeMade, LrRangeRequest, LrStepMade
from flatout.schema.predict_protocol import ProcessFailed
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio


def main() -> int:
    """Handles one request; gives the exit code."""
    stdio = JsonStdio()

    def on_step(lr: float, done: float) -> None:
        stdio.answers.write(LrStepMade(lr=lr, done=done))

    try:
        request = stdio.read(LrRangeRequest)
        stdio.exit_when_closed()
        defer_compiler_on_cpu()
        result = swept(load_experiment(request.spec), request.spec, request.sweep, on_step)
        stdio.answers.write(LrRangeMade(result=result))
    except BrokenPipeError:
        return 1
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        known = to_flatout_error(error)
        finding = internal_error(error) if known is None else finding_from(known)
        code = 3 if known is None else known.exit_code
        stdio.answers.write(ProcessFailed(finding=finding, exit_code=code))
        return code
    return 0


if __name__ == "__main__":
    end(main())
