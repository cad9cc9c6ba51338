"""Nodes of `flatout launch`, shown as they print."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterable

from flatout.cli.render import show
from flatout.cli.render.wording import DOT, home_text
from flatout.schema.finding import Finding
from flatout.schema.script_launch import NodeEnded, NodeEvent, NodesStarted
from flatout.schema.units import counted_text


def follow(events: Generator[NodeEvent], warnings: Iterable[Finding], *, is_json: bool) -> int:
    """Every line of every node with the node's number before it; gives the exit code."""
    for finding in warnings:
        show.print_finding(finding)
    ended: list[NodeEnded] = []
    folder = ""
    # With a document on stdout, the output of nodes goes to stderr.
    stream = sys.stderr if is_json else sys.stdout
    with contextlib.closing(events):
        for event in events:
            if isinstance(event, NodesStarted):
                folder = event.folder
                show.print_note(_started_text(event))
            elif isinstance(event, NodeEnded):
                ended.append(event)
                if event.is_ours:
                    show.print_note(f"node {event.node} was stopped")
            else:
                stream.write(f"node {event.node}  {event.text}\n")
                stream.flush()
    if is_json:
        show.print_json({"folder": folder, "nodes": ended})
    else:
        show.print_note(f"done: {counted_text(len(ended), 'node')}{DOT}logs in {home_text(folder)}")
    return 0


def _started_text(event: NodesStarted) -> str:
    where = "one GPU each" if event.gpus else f"CPU, {counted_text(event.threads, 'thread')} each"
    if event.hosts:
        where = f"on {', '.join(event.hosts)}"
    return (
        f"{counted_text(event.num_nodes, 'node')}{DOT}{where}{DOT}logs in {home_text(event.folder)}"
    )
