"""Questions that wait at the same time are answered together, in one thread beside the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fem_frames.files import one_line
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from training.service.requests import Question, RequestError, of_one_sample

Answers = Callable[[Sequence[Question]], list[Any]]
Log = Callable[[str], None]


def answer_each(answers: Answers, questions: Sequence[Question]) -> list[Any]:
    """One answer or one RequestError for each question: where a batch fails, its halves are asked.

    So a question that has no answer does not spoil the others.
    """
    try:
        return [_checked(answer) for answer in answers(questions)]
    except Exception as error:
        if len(questions) == 1:
            return [_as_request_error(error)]
    middle = len(questions) // 2
    return answer_each(answers, questions[:middle]) + answer_each(answers, questions[middle:])


def _checked(answer: Any) -> Any:
    """The answer, or a RequestError in its place if it is not finite, which JSON cannot hold."""
    rows = answer if answer and isinstance(answer[0], list) else [answer]
    if all(math.isfinite(value) for row in rows for value in row):
        return answer
    return RequestError("the answer is not finite: ask for other parameters", "InvalidOutput", 500)


def _as_request_error(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ValueError | ConvergenceError):  # the caller's y or tol
        return RequestError(of_one_sample(error))
    return RequestError(f"{type(error).__name__}: {one_line(error)}", "InternalError", 500)


class Batcher:
    """Collects questions and answers them in batches with equal keys, first come, first served."""

    def __init__(self, answers: Answers, most: int, log: Log | None = None) -> None:
        self._answers, self._most, self._log = answers, most, log
        self._waiting: list[tuple[Question, asyncio.Future[Any]]] = []
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "answers")
        self._open = True

    async def ask(self, question: Question) -> Any:
        """The answer; raises a RequestError if there is none."""
        if not self._open:
            raise _ended()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        self._arrived.set()
        found = await future
        if isinstance(found, RequestError):
            raise found
        return found

    async def run(self) -> None:
        """Answers questions until `close` is called."""
        loop = asyncio.get_running_loop()
        while self._open:
            await self._arrived.wait()
            await asyncio.sleep(0)  # requests that came together with the first are read now
            batch = self._take()
            if not batch:
                self._arrived.clear()
                continue
            start = time.perf_counter()
            questions = [question for question, _ in batch]
            found = await loop.run_in_executor(self._thread, answer_each, self._answers, questions)
            if self._log is not None:
                first, seconds = questions[0], time.perf_counter() - start
                self._log(f"{first.kind} {first.settings}: {len(batch)} in {1000 * seconds:.1f} ms")
            for (_, future), answer in zip(batch, found, strict=True):
                if not future.done():  # a client that has gone cancels it
                    future.set_result(answer)

    def close(self) -> None:
        """Ends `run` after the batch that it works on; questions that wait get an error."""
        self._open = False
        for _, future in self._waiting:
            if not future.done():
                future.set_result(_ended())
        self._waiting = []
        self._arrived.set()
        self._thread.shutdown(wait=False)

    def _take(self) -> list[tuple[Question, asyncio.Future[Any]]]:
        """The first question that waits, and others with its key; those of clients that have gone are dropped."""
        alive = [(question, future) for question, future in self._waiting if not future.done()]
        if not self._open or not alive:
            self._waiting = []
            return []
        same = [i for i, (question, _) in enumerate(alive) if question.key == alive[0][0].key][: self._most]
        taken = set(same)
        self._waiting = [one for i, one in enumerate(alive) if i not in taken]
        return [alive[i] for i in same]


def _ended() -> RequestError:
    return RequestError("the service is ending", "Ending", 503)
