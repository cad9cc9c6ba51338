"""What `flatout watch` shows: the line below a program's output, a record, the list of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.cli.render import show
from flatout.cli.render.tables import plain_table
from flatout.cli.render.wording import DOT, home_text, machine_text, time_text
from flatout.monitor.watch import LeftBehind, WatchTick, ending_text
from flatout.schema.machine_sample import GpuSample
from flatout.schema.shell_quoting import typed_here
from flatout.schema.units import bytes_text, counted_text, percent_text, seconds_text
from flatout.schema.watched import TimeOutside, WatchedGpu, WatchedProgramLine, WatchRecord

# What a GPU that is hardly used at this share of the time may be waiting for is worth a look.
_IDLE_SHARE = 0.5
_WIDEST_PROGRAM = 40


def live_text(tick: WatchTick) -> str:
    """One line: time, processors, memory, GPUs."""
    program, host = tick.sample.program, tick.sample.host
    parts = [_clock_text(tick.elapsed_s)]
    if tick.cpus is not None and host.num_cpus:
        parts.append(f"CPU {tick.cpus:.1f} of {host.num_cpus}")
    if program is not None:
        parts.append(f"memory {bytes_text(program.rss_bytes)}")
    parts += [_gpu_text(gpu) for gpu in tick.sample.gpus]
    return DOT.join(parts)


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _gpu_text(gpu: GpuSample) -> str:
    share = "-" if gpu.utilization is None else percent_text(gpu.utilization, 0)
    used = _of_text(gpu.used_bytes, gpu.memory_bytes)
    return f"GPU {gpu.index} {share}" + (f" {used}" if used else "")


def _of_text(used_bytes: int | None, whole_bytes: int | None) -> str:
    if used_bytes is None:
        return ""
    return bytes_text(used_bytes) + (f" of {bytes_text(whole_bytes)}" if whole_bytes else "")


def left_behind_text(left: LeftBehind) -> str:
    """The note about a program that has ended while its output is still open."""
    return (
        f"the program {ending_text(left.exit_code)}; a process that it has started still prints. "
        "Ctrl-C ends its output here"
    )


def print_summary(record: WatchRecord) -> None:
    """How it ended and where the time went, on stderr, below its output."""
    console = show.make_console(is_error=True)
    console.print()
    show.print_lines(console, _summary_lines(record))
    for alarm in record.alarms:
        show.print_finding(alarm.finding, console)


def _summary_lines(record: WatchRecord) -> Iterator[tuple[str, str]]:
    time = record.time
    if time is None:
        yield "program", "no end was recorded: it is running, or flatout was killed first"
    else:
        assert record.exit_code is not None
        end = "finished" if record.exit_code == 0 else ending_text(record.exit_code)
        yield "program", f"{end} after {seconds_text(time.took_s)}"
        yield from _time_lines(time)
    for alarm in record.alarms:
        yield "alarm", f"{_clock_text(max(0.0, alarm.at - record.began_at))}  {alarm.finding.rule}"
    for name, reason in record.unread.items():
        if name not in ("python", "versions"):
            yield "not kept", f"{name}: {reason}"
    yield "record", home_text(record.folder)


def _time_lines(time: TimeOutside) -> Iterator[tuple[str, str]]:
    parts = []
    if time.cpus is not None:
        of = f" of {time.num_cpus}" if time.num_cpus else ""
        parts.append(f"{time.cpus:.2f}{of} busy with it")
    if time.host_utilization is not None:
        parts.append(f"all programs {percent_text(time.host_utilization, 0)}")
    if parts:
        yield "CPU", DOT.join(parts)
    for gpu in time.gpus:
        yield f"GPU {gpu.index}", _gpu_use_text(gpu)
    if not time.gpus and "gpus" in time.unread:
        yield "GPU", f"- ({time.unread['gpus']})"
    yield "memory", _memory_text(time)
    yield "disk", _disk_text(time)


def _gpu_use_text(gpu: WatchedGpu) -> str:
    share = "utilization not reported"
    if gpu.utilization is not None:
        share = f"busy {percent_text(gpu.utilization, 0)} of the time"
        if gpu.utilization < _IDLE_SHARE:
            share += f"{DOT}to see why: flatout profile -- python SCRIPT"
    peak = _of_text(gpu.used_bytes, gpu.memory_bytes)
    return DOT.join(filter(None, [gpu.name or "", share, f"peak {peak}" if peak else ""]))


def _memory_text(time: TimeOutside) -> str:
    if time.rss_bytes is None:
        return "-"
    return f"peak {_of_text(time.rss_bytes, time.memory_bytes)}"


def _disk_text(time: TimeOutside) -> str:
    parts = [f"waiting: - ({time.unread.get('disk_wait', 'not known')})"]
    if time.disk_wait is not None:
        parts = [f"waited for in {percent_text(time.disk_wait)} of the time (all programs)"]
    if time.disk_read_bytes is not None:
        parts.append(f"{bytes_text(time.disk_read_bytes)} read")
    if time.disk_written_bytes is not None:
        parts.append(f"{bytes_text(time.disk_written_bytes)} written")
    return DOT.join(parts)


def print_record(record: WatchRecord) -> None:
    """A record, on stdout."""
    console = show.make_console()
    machine = [("machine", machine_text(record.machine))] if record.machine else []
    versions = DOT.join(f"{name} {version}" for name, version in record.versions.items())
    show.print_lines(console, [
        ("command", typed_here(record.program)),
        ("in", home_text(record.working_folder)),
        ("started", time_text(record.began_at)),
        *machine,
        ("versions", versions or f"- ({record.unread.get('versions', 'not read')})"),
        *_summary_lines(record),
        *([("output", home_text(record.output))] if record.output else []),
    ])  # fmt: skip
    for alarm in record.alarms:
        show.print_finding(alarm.finding, console)


def print_records(lines: Sequence[WatchedProgramLine]) -> None:
    """A line for each record."""
    if not lines:
        show.print_note("nothing was watched yet; flatout watch -- python train.py")
        return
    table = plain_table("record", "started", "time", "end", "command")
    for line in lines:
        if line.is_running:
            end = "running"
        elif line.exit_code is None:
            end = "not recorded"
        else:
            end = "finished" if line.exit_code == 0 else ending_text(line.exit_code)
        command = typed_here(line.program)
        if len(command) > _WIDEST_PROGRAM:
            command = command[: _WIDEST_PROGRAM - 3] + "..."
        took = "" if line.took_s is None else seconds_text(line.took_s)
        table.add_row(line.id, time_text(line.began_at), took, end, command)
    console = show.make_console()
    console.print(table)
    show.print_note(f"{counted_text(len(lines), 'record')}; one of them: flatout watch --show ID")
