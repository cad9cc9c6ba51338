"""The dispatcher with real replicas: batches, deadlines, deaths, streams, and the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from support.serving import action, dispatching, numbers, plan_for, text, until

from flatout.schema.serve_control import (
    ReplicaLost,
    ReplicaPrinted,
    ReplicaRestored,
    ServeEvent,
)
from flatout.serve.dispatcher import Answer, InferRequest
from flatout.serve.queue_dispatcher import DispatchLimits, QueueDispatcher
from flatout.serve.replica import MOST_STREAMS, restart_pause_s
from flatout.serve.replica_plan import plan_like
from flatout.serve.serve_errors import (
    InputNotAccepted,
    ModelFailed,
    ReplicaNotStarted,
    RequestKilledModel,
    ServerBusy,
    ServerStopping,
)


def values_of(answer: Answer) -> list[float]:
    return [row["y"][0] for row in answer.rows]


def all_at_once(
    dispatcher: QueueDispatcher, requests: list[InferRequest]
) -> Coroutine[Any, Any, list[Any]]:  # fmt: skip
    return asyncio.gather(*map(dispatcher.submit, requests), return_exceptions=True)


def test_answers_are_right_when_many_come_at_once() -> None:
    async def main() -> list[Answer]:
        async with dispatching(plan_for(fixed_s=0.02)) as dispatcher:
            requests = [numbers([n, n + 0.5]) for n in range(100)]
            return await asyncio.gather(*map(dispatcher.submit, requests))

    answers = asyncio.run(main())
    assert [values_of(answer) for answer in answers] == [[2 * n, 2 * n + 1] for n in range(100)]
    sizes = {answer.batch_samples for answer in answers}
    # The first one found an idle replica; the others went together.
    assert min(sizes) == 2 and max(sizes) == 16
    assert all(answer.model.name == "double" for answer in answers)


def test_raw_answer_has_tensors() -> None:
    async def main() -> Answer:
        async with dispatching(plan_for()) as dispatcher:
            return await dispatcher.submit(numbers([1.5], is_raw=True))

    (tensor,) = asyncio.run(main()).tensors
    assert (tensor.name, tensor.shape) == ("y", (1, 2))


def test_large_request_is_computed_by_itself() -> None:
    async def main() -> list[Answer]:
        async with dispatching(plan_for(fixed_s=0.05)) as dispatcher:
            sizes = (1, 1, 40, 1)
            requests = [numbers(range(size)) for size in sizes]
            return await asyncio.gather(*map(dispatcher.submit, requests))

    assert [answer.batch_samples for answer in asyncio.run(main())][2] == 40


def test_requests_are_shared_when_there_are_two_replicas() -> None:
    async def main() -> set[int]:
        async with dispatching(plan_for(num_replicas=2, fixed_s=0.05)) as dispatcher:
            requests = [numbers([n]) for n in range(8)]
            answers = await asyncio.gather(*map(dispatcher.submit, requests))
            return {answer.rows[0]["pid"] for answer in answers}

    assert len(asyncio.run(main())) == 2


def test_replicas_are_as_many_as_the_first_one_leaves_cores_for() -> None:
    async def main() -> tuple[QueueDispatcher, set[int]]:
        plan = msgspec.structs.replace(plan_for(num_threads=2, fixed_s=0.1), num_cores=5)
        async with dispatching(plan) as dispatcher:
            answers = await asyncio.gather(*(dispatcher.submit(numbers([n])) for n in range(8)))
            back = await dispatcher.swap(plan_like(plan_for("triple", scale=3.0), dispatcher.plan))
            assert back.model.name == "triple"
            return dispatcher, {answer.rows[0]["pid"] for answer in answers}

    dispatcher, pids = asyncio.run(main())
    assert len(pids) == len(dispatcher.plan.starts) == 2
    assert all(start.num_threads == 2 for start in dispatcher.plan.starts)
    # Each replica of the server has a number of its own.
    assert len({replica.index for replica in dispatcher.state().replicas}) == len(
        dispatcher.state().replicas
    )


def test_request_is_refused_when_the_queue_is_full() -> None:
    async def main() -> tuple[list[Any], int]:
        async with dispatching(plan_for(fixed_s=0.2), max_queue=3) as dispatcher:
            results = await all_at_once(dispatcher, [numbers([n]) for n in range(20)])
            return results, dispatcher.state().totals.num_busy

    results, num_busy = asyncio.run(main())
    refused = [result for result in results if isinstance(result, ServerBusy)]
    assert num_busy == len(refused) >= 10
    assert all(error.retry_after_s >= 1.0 and error.rule == "server-busy" for error in refused)
    answered = [(n, result) for n, result in enumerate(results) if isinstance(result, Answer)]
    assert len(answered) + len(refused) == 20
    assert all(values_of(answer) == [2 * n] for n, answer in answered)


def test_request_is_refused_early_when_it_would_miss_its_deadline() -> None:
    async def main() -> QueueDispatcher:
        async with dispatching(plan_for(fixed_s=0.3)) as dispatcher:
            before = [asyncio.ensure_future(dispatcher.submit(numbers(range(16))))
                      for _ in range(4)]  # fmt: skip
            await asyncio.sleep(0)
            with pytest.raises(ServerBusy, match="busy"):
                await dispatcher.submit(numbers([1], deadline_s=0.5))
            await asyncio.gather(*before)
            return dispatcher

    totals = asyncio.run(main()).state().totals
    assert (totals.num_busy, totals.num_expired, totals.num_answered) == (1, 0, 4)


def test_request_is_computed_when_only_the_measured_times_are_too_long() -> None:
    async def main() -> Answer:
        async with dispatching(plan_for(fixed_s=0.05)) as dispatcher:
            # From now on, a batch is expected to take longer than the deadline.
            await dispatcher.submit(action("sleep", seconds=4.0))
            return await dispatcher.submit(numbers([1], deadline_s=0.3))

    assert values_of(asyncio.run(main())) == [2]


def test_request_ends_when_its_deadline_passes() -> None:
    async def main() -> QueueDispatcher:
        async with dispatching(plan_for()) as dispatcher:
            results = await all_at_once(
                dispatcher,
                [action("sleep", seconds=1.0, deadline_s=0.2), action("x", deadline_s=0.2)],
            )
            assert [type(result) for result in results] == [ServerBusy, ServerBusy]
            # The replica is still the same one, and computes again.
            assert values_of(await dispatcher.submit(numbers([4]))) == [8]
            return dispatcher

    totals = asyncio.run(main()).state().totals
    assert (totals.num_expired, totals.num_restarts) == (2, 0)


def test_cancelled_request_leaves_the_queue() -> None:
    async def main() -> None:
        async with dispatching(plan_for(fixed_s=0.3)) as dispatcher:
            first = asyncio.ensure_future(dispatcher.submit(numbers([1])))
            second = asyncio.ensure_future(dispatcher.submit(numbers([2])))
            await until(lambda: dispatcher.state().num_queued == 1)
            second.cancel()
            await asyncio.wait({second})
            state = dispatcher.state()
            assert (state.num_queued, state.queued_samples) == (0, 0)
            assert state.totals.num_cancelled == 1
            assert values_of(await first) == [2]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("what", "kind", "rule"),
    [
        ("refuse", InputNotAccepted, "input-not-accepted"),
        ("fail", ModelFailed, "model-failed"),
        ("skip", RequestKilledModel, "request-killed-the-model"),
    ],
)
def test_refusal_of_a_replica_fails_one_request(what: str, kind: type, rule: str) -> None:
    async def main() -> list[Any]:
        async with dispatching(plan_for(fixed_s=0.1)) as dispatcher:
            return await all_at_once(dispatcher, [numbers([1]), action(what), numbers([2])])

    first, error, last = asyncio.run(main())
    assert isinstance(error, kind) and error.rule == rule
    assert values_of(first) == [2] and values_of(last) == [4]


def test_request_that_kills_the_replica_fails_alone() -> None:
    events: list[ServeEvent] = []

    async def main() -> list[Any]:
        async with dispatching(plan_for(fixed_s=0.1), events) as dispatcher:
            # The first one keeps the replica busy, so that the others go together.
            requests = [numbers([n]) for n in range(6)]
            requests.insert(3, action("crash"))
            results = await all_at_once(dispatcher, requests)
            totals = dispatcher.state().totals
            assert (totals.num_answered, totals.num_failed, totals.num_restarts) == (6, 1, 2)
            assert values_of(await dispatcher.submit(numbers([9]))) == [18]
            return results

    results = asyncio.run(main())
    killed = results.pop(3)
    assert isinstance(killed, RequestKilledModel)
    assert "exit code 9" in str(killed)
    assert [values_of(result) for result in results] == [[2 * n] for n in range(6)]
    lost = [event for event in events if isinstance(event, ReplicaLost)]
    assert [event.num_failed for event in lost] == [0, 1]
    assert lost[0].num_retried >= 2
    assert lost[0].finding.evidence == ("crashing",)
    assert sum(isinstance(event, ReplicaRestored) for event in events) == 2


def test_request_is_computed_again_when_its_replica_was_killed_by_others(tmp_path: Path) -> None:
    async def main() -> Answer:
        async with dispatching(plan_for()) as dispatcher:
            return await dispatcher.submit(action("crash once", path=str(tmp_path / "crashed")))

    assert asyncio.run(main()).rows[0]["did"] == "crash once"


def test_hung_replica_is_killed() -> None:
    async def main() -> None:
        async with dispatching(plan_for(), hang_s=0.5) as dispatcher:
            pid = dispatcher.state().replicas[0].pid
            results = await all_at_once(dispatcher, [action("hang", deadline_s=0.3), numbers([3])])
            assert isinstance(results[0], ServerBusy)
            assert values_of(results[1]) == [6]
            (replica,) = dispatcher.state().replicas
            assert replica.num_restarts == 1 and replica.pid != pid

    asyncio.run(main())


def test_stream_gives_pieces_in_order() -> None:
    async def main() -> list[str]:
        async with dispatching(plan_for()) as dispatcher:
            return [piece async for piece in dispatcher.stream(text("one two three"))]

    assert asyncio.run(main()) == ["one", "two", "three"]


def test_stream_ends_in_the_replica_when_the_client_leaves() -> None:
    async def main() -> None:
        async with dispatching(plan_for()) as dispatcher:
            # It would take longer than the test may.
            stream = dispatcher.stream(text("word " * 10_000))
            async for _ in stream:
                break
            await stream.aclose()
            assert values_of(await dispatcher.submit(numbers([1]))) == [2]
            assert dispatcher.state().totals.num_cancelled == 1

    asyncio.run(main())


def test_stream_ends_in_the_replica_when_its_deadline_passes() -> None:
    async def main() -> None:
        async with dispatching(plan_for()) as dispatcher:
            busy = asyncio.ensure_future(dispatcher.submit(action("sleep", seconds=1.0)))
            await asyncio.sleep(0)
            # It would take longer than the test may.
            late = msgspec.structs.replace(text("word " * 10_000), deadline_s=0.3)
            with pytest.raises(ServerBusy, match="busy"):
                [piece async for piece in dispatcher.stream(late)]
            await busy
            assert values_of(await dispatcher.submit(numbers([1]))) == [2]

    asyncio.run(main())


def test_request_is_answered_when_a_stream_waits() -> None:
    async def main() -> None:
        async with dispatching(plan_for(), max_queue=1) as dispatcher:
            streams = [dispatcher.stream(text("word " * 10_000)) for _ in range(MOST_STREAMS + 1)]
            first = [asyncio.ensure_future(anext(stream)) for stream in streams]
            await until(lambda: dispatcher.state().replicas[0].num_in_flight == MOST_STREAMS)
            assert dispatcher.state().num_queued == 1
            with pytest.raises(ServerBusy, match="busy"):
                await anext(dispatcher.stream(text("one too many")))
            async with asyncio.timeout(60):
                assert values_of(await dispatcher.submit(numbers([1]))) == [2]
            await first[0]
            await streams[0].aclose()
            # It has got the place of the first one.
            assert await first[-1] == "word"
            for stream in streams[1:]:
                await stream.aclose()

    asyncio.run(main())


def test_stream_takes_the_replica_that_has_room_when_another_has_fewer_batches() -> None:
    async def main() -> None:
        async with dispatching(plan_for(num_replicas=2)) as dispatcher:
            # Longer than the test may take.
            busy = asyncio.ensure_future(dispatcher.submit(action("sleep", seconds=100.0)))
            await asyncio.sleep(0)
            streams = [dispatcher.stream(text("word " * 10_000)) for _ in range(2 * MOST_STREAMS)]
            first = [asyncio.ensure_future(anext(stream)) for stream in streams]

            def num_placed() -> int:
                return sum(one.num_in_flight for one in dispatcher.state().replicas)

            await until(lambda: num_placed() >= 2 * MOST_STREAMS)
            assert dispatcher.state().num_queued == 0 and not busy.done()
            for one in (*first, busy):
                one.cancel()
            await asyncio.gather(*first, busy, return_exceptions=True)
            for stream in streams:
                await stream.aclose()

    asyncio.run(main())


def test_stream_fails_when_its_replica_dies() -> None:
    async def main() -> None:
        async with dispatching(plan_for()) as dispatcher:
            pieces = []
            with pytest.raises(RequestKilledModel):
                async for piece in dispatcher.stream(text("one CRASH")):
                    pieces.append(piece)
            assert pieces == ["one"]
            assert values_of(await dispatcher.submit(numbers([1]))) == [2]

    asyncio.run(main())


def test_stop_finishes_what_was_accepted() -> None:
    async def main() -> list[Any]:
        async with dispatching(plan_for(fixed_s=0.1)) as dispatcher:
            pid = dispatcher.state().replicas[0].pid
            waiting = asyncio.ensure_future(
                all_at_once(dispatcher, [numbers([n]) for n in range(40)])
            )
            await until(lambda: dispatcher.state().totals.num_requests == 40)
            assert dispatcher.refuse_new() == 40
            assert not dispatcher.is_ready
            with pytest.raises(ServerStopping):
                await dispatcher.submit(numbers([1]))
            await dispatcher.stop()
            assert pid is not None and not psutil.pid_exists(pid)
            return await waiting

    assert [values_of(answer) for answer in asyncio.run(main())] == [[2 * n] for n in range(40)]


def test_kill_ends_requests_and_replicas() -> None:
    async def main() -> None:
        async with dispatching(plan_for()) as dispatcher:
            pid = dispatcher.state().replicas[0].pid
            waiting = asyncio.ensure_future(dispatcher.submit(action("hang")))
            await until(lambda: dispatcher.state().replicas[0].num_in_flight == 1)
            assert await dispatcher.kill() == 1
            with pytest.raises(ServerStopping):
                await waiting
            assert pid is not None and not psutil.pid_exists(pid)

    asyncio.run(main())


def test_kill_counts_what_gets_no_answer() -> None:
    async def main() -> int:
        async with dispatching(plan_for()) as dispatcher:
            with pytest.raises(ServerBusy):
                await dispatcher.submit(action("hang", deadline_s=0.2))
            return await dispatcher.kill()

    assert asyncio.run(main()) == 0


def test_output_of_a_replica_is_reported_while_it_answers() -> None:
    events: list[ServeEvent] = []

    async def main() -> None:
        async with dispatching(plan_for(), events) as dispatcher:
            await dispatcher.submit(action("print"))
            await until(lambda: any(isinstance(event, ReplicaPrinted) for event in events))

    asyncio.run(main())
    assert ReplicaPrinted(replica=0, text="printed by the model\n") in events


@pytest.mark.parametrize(
    ("how", "rule", "exit_code", "because"),
    [
        ("fail", "unknown-recipe-field", 2, ""),
        ("die", "replica-died", 1, "exit code 7"),
        ("print", "replica-died", 1, "not a message"),
    ],
)
def test_start_says_why_a_replica_cannot_start(
    how: str, rule: str, exit_code: int, because: str
) -> None:
    async def main() -> None:
        dispatcher = QueueDispatcher(DispatchLimits(), lambda event: None)
        async with asyncio.timeout(60):
            await dispatcher.start(plan_for(start=how, num_replicas=2))

    with pytest.raises(ReplicaNotStarted) as caught:
        asyncio.run(main())
    error = caught.value
    assert (error.rule, error.exit_code) == (rule, exit_code)
    assert because in (error.because or "")
    assert ("out of luck" in error.printed) == (how == "die")


def test_restart_pauses_grow_to_a_limit() -> None:
    assert [restart_pause_s(count) for count in (0, 1, 2, 5, 7, 5_000)] == [0, 0.5, 1, 8, 30, 30]


def test_start_when_the_interpreter_does_not_exist() -> None:
    async def main() -> None:
        plan = msgspec.structs.replace(plan_for(), command=("/nowhere/python",))
        await QueueDispatcher(DispatchLimits(), lambda event: None).start(plan)

    with pytest.raises(ReplicaNotStarted, match="could not be started"):
        asyncio.run(main())
