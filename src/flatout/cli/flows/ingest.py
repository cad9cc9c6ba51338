"""Shows the progress and the result of an ingestion."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from flatout.cli.flows import explain_failure
from flatout.cli.render import show
from flatout.cli.render.live import Waiting
from flatout.cli.render.wording import DOT, home_text
from flatout.schema.ingest_protocol import (
    Advanced,
    AnyIngestReply,
    Ingested,
    Listed,
    ShardManifest,
)
from flatout.schema.predict_protocol import Noted, ProcessFailed
from flatout.schema.units import bytes_text, count_text, counted_text

# Where lines cannot be redrawn: one line per this fraction of the work.
_PLAIN_STEP = 0.25


def follow(replies: Generator[AnyIngestReply], *, is_json: bool) -> int:
    """Shows progress on stderr, then the result; returns the exit code."""
    exit_code = 0
    with contextlib.closing(replies), Waiting("scanning the source") as waiting:
        progress = _Progress(waiting)
        for line in replies:
            if isinstance(line, Listed):
                progress.begin(line)
            elif isinstance(line, Advanced):
                progress.go_on(line)
            elif isinstance(line, Noted):
                waiting.stop()
                show.print_finding(line.finding)
            elif isinstance(line, ProcessFailed):
                waiting.stop()
                exit_code = line.exit_code
                show.print_finding(line.finding)
                if exit_code != 2:
                    explain_failure.explain(line.finding, line.printed)
                if is_json:
                    show.print_json({"error": line.finding})
            elif is_json:
                waiting.stop()
                show.print_json(_document(line))
            else:
                waiting.stop()
                _print_ingested(line)
    return exit_code


class _Progress:
    """Shows progress: continuously on a terminal, a few times elsewhere."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._is_plain = not show.is_alive(show.make_console(is_error=True))
        self._listed: Listed | None = None
        self._printed_share = 0.0

    def begin(self, listed: Listed) -> None:
        """The source is known."""
        self._listed = listed
        already_done = f"{DOT}{count_text(listed.num_kept)} already done" if listed.num_kept else ""
        self._waiting.stop()
        show.print_note(
            f"{listed.source_kind}{DOT}{bytes_text(listed.size_bytes)} in "
            f"{counted_text(listed.num_pieces, 'piece')}{already_done}"
        )

    def go_on(self, done: Advanced) -> None:
        """Shows how many pieces are done."""
        assert self._listed is not None
        pieces = counted_text(self._listed.num_pieces, "piece")
        text = (
            f"{count_text(done.num_pieces)} of {pieces}{DOT}"
            f"{counted_text(done.num_records, 'record')}{DOT}{count_text(done.num_rejected)} "
            f"rejected"
        )
        share = done.num_pieces / self._listed.num_pieces
        if not self._is_plain:
            self._waiting.update(text)
        elif share - self._printed_share >= _PLAIN_STEP:
            self._printed_share = share
            show.print_note(text)


def _print_ingested(line: Ingested) -> None:
    manifest = line.manifest
    parts = [f"{count_text(number)} {part}" for part, number in manifest.counts.items() if number]
    size = bytes_text(sum(shard.size_bytes for shard in manifest.shards))
    rows = [
        ("records", DOT.join(parts)),
        *_rejected_rows(line, manifest),
        ("shards", f"{count_text(len(manifest.shards))}{DOT}{size}{DOT}SHA-256 in manifest.json"),
        ("made", _made_text(line)),
        ("folder", home_text(line.folder)),
        *([("nodes", line.on_nodes)] if line.on_nodes else []),
    ]
    show.print_lines(show.make_console(), rows)


def _rejected_rows(line: Ingested, manifest: ShardManifest) -> list[tuple[str, str]]:
    if not manifest.num_rejected:
        return []
    path = f"{home_text(line.folder)}/rejected.jsonl"
    return [("rejected", f"{count_text(manifest.num_rejected)}{DOT}reasons in {path}")]


def _made_text(line: Ingested) -> str:
    if not line.num_made and not line.num_removed:
        return "nothing: all of it was already done"
    removed = (
        f"{DOT}{counted_text(line.num_removed, 'old shard')} removed" if line.num_removed else ""
    )
    return f"{count_text(line.num_made)} of {counted_text(line.num_pieces, 'piece')}{removed}"


def _document(line: Ingested) -> dict[str, object]:
    manifest = line.manifest
    return {
        "folder": line.folder,
        "on_nodes": line.on_nodes,
        "counts": manifest.counts,
        "num_rejected": manifest.num_rejected,
        "num_shards": len(manifest.shards),
        "size_bytes": sum(shard.size_bytes for shard in manifest.shards),
        "source": manifest.source,
        "num_pieces": line.num_pieces,
        "num_made": line.num_made,
        "num_removed": line.num_removed,
    }
