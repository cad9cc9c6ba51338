"""The process that ingests: `python -m flatout.engine.ingest`.

Started by the command line. A request arrives as a line of JSON on standard input, which stays
open: its end means that the parent has gone. Progress goes out as JSON lines.
"""

from __future__ import annotations

import traceback

from flatout.engine.ingest.ingestion import ingest
from flatout.errors import FlatoutError
from flatout.schema.finding import finding_from, internal_error
from flatout.schema.ingest_protocol import IngestRequest
from flatout.schema.predict_protocol import ProcessFailed
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio


def main() -> int:
    """Carries out one request; returns the exit code."""
    stdio = JsonStdio()
    request = stdio.read(IngestRequest)
    # With it end the processes of a pool, of Ray and of Dask.
    stdio.exit_when_closed()
    try:
        for line in ingest(request):
            stdio.answers.write(line)
    except FlatoutError as error:
        stdio.answers.write(ProcessFailed(finding=finding_from(error), exit_code=error.exit_code))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - any failure is reported
        traceback.print_exc()
        stdio.answers.write(ProcessFailed(finding=internal_error(error), exit_code=3))
        return 3
    return 0


if __name__ == "__main__":
    end(main())
