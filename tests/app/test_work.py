"""Views that newer ones replace, and jobs that can be cancelled."""

import asyncio
import threading
import time

import pytest

from tailprop.app.work import CancelledError, Job, Jobs, StaleError, Summary, Views, explain


def wait(job: Job) -> None:
    until = time.monotonic() + 10
    while not job.is_over:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_only_the_newest_view_of_a_page_is_computed() -> None:
    views, done, first_began, go = Views(threads=1), [], threading.Event(), threading.Event()

    def compute(number: int, check: object) -> int:
        if number == 0:
            first_began.set()
            go.wait(10)
        check()
        done.append(number)
        return number

    async def drag() -> list[object]:
        asked = [asyncio.ensure_future(views.run("page", "operator", lambda check: compute(0, check)))]
        await asyncio.to_thread(first_began.wait, 10)
        asked += [asyncio.ensure_future(views.run("page", "operator", lambda check, n=n: compute(n, check))) for n in (1, 2, 3)]
        asked.append(asyncio.ensure_future(views.run("other page", "operator", lambda check: compute(9, check))))
        await asyncio.sleep(0.05)
        go.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(drag())
    assert [type(result) for result in found[:3]] == [StaleError] * 3
    assert found[3:] == [3, 9]
    assert sorted(done) == [3, 9]  # the first one stopped at its next check, the others never began
    views.close()


def test_job_reports_progress_and_its_result() -> None:
    jobs = Jobs(1)

    def work(job: Job) -> Summary:
        job.tick(0.5)
        return Summary({"value": 3})

    job = jobs.start("a job", work)
    wait(job)
    assert job.summary() == {
        "id": job.key, "title": "a job", "state": "done", "share": 1.0, "error": "", "result": {"value": 3}
    }  # fmt: skip
    assert jobs.get(job.key) is job
    with pytest.raises(ValueError, match="no longer has this job"):
        jobs.get("nonsense")
    jobs.close()


def test_job_is_cancelled_at_its_next_tile_and_before_it_begins() -> None:
    jobs, began = Jobs(1), threading.Event()

    def work(job: Job) -> Summary:
        began.set()
        for _ in range(1000):
            job.tick(0.001)
            time.sleep(0.01)
        raise AssertionError("it was not cancelled")

    running, waiting = jobs.start("runs", work), jobs.start("waits", work)
    assert began.wait(10)
    waiting.stop = running.stop = True
    wait(running)
    wait(waiting)
    assert (running.state, waiting.state) == ("cancelled", "cancelled")
    assert waiting.share == 0
    jobs.close()


def test_failed_job_says_why() -> None:
    jobs = Jobs(1)

    def work(_job: Job) -> Summary:
        raise ValueError("no such thing;\nchoose another")

    job = jobs.start("fails", work)
    wait(job)
    assert (job.state, job.error) == ("failed", "no such thing; choose another")
    jobs.close()


def test_old_results_are_dropped_and_too_many_jobs_refused() -> None:
    jobs, go = Jobs(1), threading.Event()
    for _ in range(12):
        wait(jobs.start("quick", lambda _job: Summary({})))
    assert len(jobs._jobs) == 4  # the last one, and three that were over when it began
    for _ in range(32):
        jobs.start("slow", lambda _job: Summary({"waited": go.wait(10)}))
    with pytest.raises(ValueError, match="too many jobs are waiting"):
        jobs.start("slow", lambda _job: Summary({}))
    assert len(jobs._jobs) == 35
    go.set()
    jobs.close()


def test_errors_in_one_line() -> None:
    assert explain(ValueError("a\n b")) == "a b"
    assert explain(MemoryError()).startswith("out of memory")
    assert explain(KeyError("x")) == "unexpected error: KeyError: 'x'"
    assert issubclass(CancelledError, Exception)
