"""Swaps: under load, back, one at a time, refused; and the control port that asks for them."""

from __future__ import annotations

import asyncio
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from support.serving import action, dispatching, numbers, plan_for, until

from flatout.errors import RunFailed, UsageError
from flatout.schema.serve_control import (
    BatchesMeasured,
    ControlFile,
    ReplicaPlan,
    ReplicaWarming,
    ServeEvent,
    ServeSwapped,
    SwapFailed,
)
from flatout.serve.control import ControlPort, ask_swap, choose_server
from flatout.serve.queue_dispatcher import QueueDispatcher
from flatout.serve.replica_plan import plan_like
from flatout.serve.replica_pool import ReplicaPool
from flatout.serve.serve_errors import NothingToSwapBack, ReplicaNotStarted, SwapRunning
from flatout.system import serve_files


def test_swap_loses_no_request_under_load() -> None:
    versions: list[str] = []
    # Of each client, by its number.
    newest: dict[int, str] = {}

    async def client(dispatcher: QueueDispatcher, is_over: asyncio.Event, number: int) -> None:
        value = number
        while not is_over.is_set():
            value += 7
            answer = await dispatcher.submit(numbers([value]))
            assert answer.rows[0]["y"][0] == value * float(answer.model.version)
            versions.append(answer.model.version)
            newest[number] = answer.model.version

    async def main() -> None:
        async with dispatching(plan_for(fixed_s=0.01, num_replicas=2)) as dispatcher:
            before = {replica.pid for replica in dispatcher.state().replicas}
            is_over = asyncio.Event()
            clients = [
                asyncio.ensure_future(client(dispatcher, is_over, number)) for number in range(20)
            ]
            swapped = await dispatcher.swap(plan_for("triple", scale=3.0, fixed_s=0.01))
            assert swapped.model.name == dispatcher.model.name == "triple"
            await until(lambda: set(newest.values()) == {"3.0"})
            back = await dispatcher.swap_back()
            assert back.model.name == "double"
            await until(lambda: set(newest.values()) == {"2.0"})
            is_over.set()
            await asyncio.gather(*clients)
            totals = dispatcher.state().totals
            assert totals.num_requests == totals.num_answered == len(versions)
            assert totals.num_swaps == 2
            while any(psutil.pid_exists(pid) for pid in before if pid is not None):
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert set(versions) == {"2.0", "3.0"}
    assert (versions[0], versions[-1]) == ("2.0", "2.0")


def test_old_model_finishes_what_it_has() -> None:
    async def main() -> tuple[Any, Any]:
        async with dispatching(plan_for()) as dispatcher:
            old = asyncio.ensure_future(dispatcher.submit(action("sleep", seconds=1.0)))
            queued = asyncio.ensure_future(dispatcher.submit(numbers([1])))
            await asyncio.sleep(0)
            await dispatcher.swap(plan_for("triple", scale=3.0))
            new = await dispatcher.submit(numbers([1]))
            assert new.rows[0]["y"] == [3.0, 3.0]
            return await old, await queued

    old, queued = asyncio.run(main())
    assert old.model.name == queued.model.name == "double"
    assert queued.rows[0]["y"] == [2.0, 2.0]


def test_batches_are_measured_again_when_the_old_model_has_ended() -> None:
    events: list[ServeEvent] = []

    async def main() -> None:
        async with dispatching(plan_for(latency_s=0.02, num_replicas=2), events) as dispatcher:
            assert dispatcher.batch_samples == 16
            busy = asyncio.ensure_future(dispatcher.submit(action("sleep", seconds=0.5)))
            await asyncio.sleep(0)
            plan = plan_for("triple", scale=3.0, latency_s=0.02, num_replicas=2, again=64)
            await dispatcher.swap(plan)
            assert busy.done() or dispatcher.batch_samples == 16
            await until(lambda: dispatcher.batch_samples == 64)
            assert busy.done() and dispatcher.model.batch_s == {1: 0.001, 64: 0.002}
            answers = await asyncio.gather(*(dispatcher.submit(numbers([n])) for n in range(60)))
            # Replicas that have not measured again compute as many together, too.
            assert len({answer.rows[0]["pid"] for answer in answers}) == 2
            assert {answer.rows[0]["most"] for answer in answers} == {64}
            assert dispatcher.state().batch_limit == 64
            assert dispatcher.state().totals.num_unmeasured == 0

    asyncio.run(main())
    (measured,) = measurements(events)
    assert (measured.model.name, measured.batch_samples, measured.finding) == ("triple", 64, None)


def measurements(events: list[ServeEvent]) -> list[BatchesMeasured]:
    return [event for event in events if isinstance(event, BatchesMeasured)]


@pytest.mark.parametrize(
    ("again", "because", "num_restarts"),
    [("die", "has ended; they", 1), ("fail", "example: no longer; they", 0)],
)
def test_batches_that_cannot_be_measured_again_are_reported(
    again: str, because: str, num_restarts: int
) -> None:
    events: list[ServeEvent] = []

    async def main() -> None:
        async with dispatching(plan_for(latency_s=0.02), events) as dispatcher:
            await dispatcher.swap(plan_for("triple", scale=3.0, latency_s=0.02, again=again))
            await until(lambda: dispatcher.state().totals.num_unmeasured == 1)
            await until(lambda: dispatcher.state().totals.num_restarts == num_restarts)
            assert (await dispatcher.submit(numbers([1]))).rows[0]["y"] == [3.0, 3.0]
            assert dispatcher.batch_samples == 16

    asyncio.run(main())
    (measured,) = measurements(events)
    assert measured.batch_samples == 16 and measured.finding is not None
    assert measured.finding.rule == "batches-not-measured"
    assert because in str(measured.finding.because)


def test_fault_in_measuring_again_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[ServeEvent] = []

    async def measure_again(pool: ReplicaPool) -> BatchesMeasured | None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(ReplicaPool, "measure_again", measure_again)

    async def main() -> None:
        async with dispatching(plan_for(latency_s=0.02), events) as dispatcher:
            await dispatcher.swap(plan_for("triple", latency_s=0.02))
            await until(lambda: dispatcher.state().totals.num_unmeasured == 1)

    asyncio.run(main())
    (measured,) = measurements(events)
    assert measured.finding is not None
    assert "ZeroDivisionError: of ours" in str(measured.finding.because)


def test_swap_that_fails_changes_nothing() -> None:
    async def main() -> None:
        async with dispatching(plan_for()) as dispatcher:
            with pytest.raises(ReplicaNotStarted):
                await dispatcher.swap(plan_for("broken", start="fail"))
            answer = await dispatcher.submit(numbers([1]))
            assert answer.model.name == "double"
            assert not dispatcher.state().is_swapping
            with pytest.raises(NothingToSwapBack):
                await dispatcher.swap_back()

    asyncio.run(main())


def test_second_swap_is_refused_while_one_is_running() -> None:
    async def main() -> None:
        async with dispatching(plan_for()) as dispatcher:
            first = asyncio.ensure_future(dispatcher.swap(plan_for("triple", scale=3.0)))
            await asyncio.sleep(0)
            with pytest.raises(SwapRunning):
                await dispatcher.swap(plan_for("other"))
            await first
            assert dispatcher.model.name == "triple"

    asyncio.run(main())


def test_swap_ends_when_the_server_stops() -> None:
    async def main() -> None:
        async with dispatching(plan_for()) as dispatcher:
            slow = plan_for("slow", start="slow", start_s=60.0)
            swapping = asyncio.ensure_future(dispatcher.swap(slow))
            await asyncio.sleep(0.5)
            await dispatcher.stop()
            with pytest.raises(RunFailed, match="stopping"):
                await swapping

    asyncio.run(main())


async def asked(control: ControlFile, plan: ReplicaPlan | None) -> list[Any]:
    return await asyncio.to_thread(list, ask_swap(control, plan))


def test_control_port_swaps_and_swaps_back() -> None:
    events: list[ServeEvent] = []

    async def main() -> None:
        async with dispatching(plan_for(num_replicas=2), events) as dispatcher:
            port = ControlPort(dispatcher, events.append)
            control = await port.open("double", 8000)
            *_, swapped = await asked(control, plan_for("triple", scale=3.0))
            assert isinstance(swapped, ServeSwapped) and swapped.model.name == "triple"
            # As many replicas as before, whatever the order says.
            ready = [replica for replica in dispatcher.state().replicas if replica.version == "3.0"]
            assert len(ready) == 2
            (failed,) = await asked(control, plan_for("broken", start="die"))
            assert isinstance(failed, SwapFailed) and failed.finding.rule == "replica-died"
            *_, back = await asked(control, None)
            assert isinstance(back, ServeSwapped) and back.model.name == "double"
            port.close()

    asyncio.run(main())
    assert sum(isinstance(event, SwapFailed) for event in events) == 1
    assert sum(isinstance(event, ServeSwapped) for event in events) == 2


def test_control_port_shows_what_replicas_do() -> None:
    async def main() -> list[Any]:
        async with dispatching(plan_for()) as dispatcher:
            port: ControlPort
            port = ControlPort(dispatcher, lambda event: None)
            dispatcher._report = port.pass_on
            control = await port.open("double", 8000)
            return await asked(control, plan_for("triple", scale=3.0))

    warming, _ = asyncio.run(main())
    assert warming == ReplicaWarming(name="triple", replica=1, what="warming up")


def test_control_port_ignores_a_wrong_secret() -> None:
    async def main() -> None:
        async with dispatching(plan_for()) as dispatcher:
            port = ControlPort(dispatcher, lambda event: None)
            control = await port.open("double", 8000)
            wrong = msgspec.structs.replace(control, secret=control.secret[:-1])
            with pytest.raises(RunFailed, match="did not answer"):
                await asked(wrong, plan_for("triple", scale=3.0))
            assert dispatcher.model.name == "double"

    asyncio.run(main())


def server(port: int, name: str = "digits", control_port: int = 1) -> ControlFile:
    return ControlFile(name=name, port=port, control_port=control_port, secret="s" * 40)


def test_choose_server_when_there_are_several() -> None:
    servers = [server(8000), server(8001, "mnist")]
    assert choose_server(servers, 8001) == servers[1]
    assert choose_server(servers[:1], None) == servers[0]
    with pytest.raises(UsageError, match="2 servers are running"):
        choose_server(servers, None)
    with pytest.raises(UsageError, match="uses port 9") as caught:
        choose_server(servers, 9)
    assert "8001 (mnist)" in (caught.value.because or "")
    with pytest.raises(UsageError, match="is running"):
        choose_server([], None)


def test_control_file_is_only_for_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        control = server(8000, control_port=listener.getsockname()[1])
        path = serve_files.write_control(control)
        assert serve_files.running_servers() == [control]
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    serve_files.remove("8000")
    assert not path.exists()


def test_control_file_of_a_server_that_has_ended_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    path = serve_files.write_control(server(8000))
    (tmp_path / "servers" / "8001.json").write_text("{")
    assert serve_files.running_servers() == []
    assert not path.exists()


def test_swap_back_with_other_options_is_refused(cli: Any) -> None:
    for words in (("--use", "precision=bf16"), ("--on", "cluster"), ("--trust",)):
        done = cli.run("serve", "swap", "--back", *words)
        assert done.returncode == 2 and "leave out other options" in done.stderr


@pytest.mark.parametrize("text", ["", "a b", "schlüssel", "@missing"])
def test_secret_that_no_client_can_send_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, RunFailed)):
        serve_files.secret_of(text, "--token")


def test_secret_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    assert serve_files.secret_of(f"@{tmp_path / 'token'}", "--token") == "abc"


def test_plan_like_keeps_places_and_limits() -> None:
    old = plan_for(num_replicas=2)
    starts = tuple(
        msgspec.structs.replace(
            start, fixed={"device": f"cuda:{number}", "precision": "bf16"}, max_samples=4
        )
        for number, start in enumerate(old.starts)
    )
    old = msgspec.structs.replace(old, starts=starts, latency_s=0.5)
    new = plan_like(plan_for("triple", scale=3.0), old)
    assert (new.name, new.latency_s) == ("triple", 0.5)
    assert [start.fixed for start in new.starts] == [{"device": "cuda:0"}, {"device": "cuda:1"}]
    assert all(start.max_samples == 4 and start.model == "triple" for start in new.starts)
