"""The routes of the page.

What needs PyTorch is imported in the threads that use it: that takes seconds, and the page is shown meanwhile.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tailprop.app.guard import BodyTooLargeError, Guard
from tailprop.app.library import Library
from tailprop.app.messages import frame, number, plain, read_body, text
from tailprop.app.store import SAMPLES, Photo, Photographs
from tailprop.app.work import Job, Jobs, StaleError, Summary, Views, explain

__all__ = ["State", "create_app"]

MOST_COMPARED: Final = 6
STATIC: Final = Path(__file__).parent / "static"

Endpoint = Callable[["State", Request], Awaitable[Response]]


@dataclass(frozen=True)
class State:
    """What all requests share."""

    photos: Photographs
    views: Views
    jobs: Jobs
    library: Library
    images: Path | None  # of the set that gates are compared over

    @cached_property
    def logs(self) -> Any:
        from tailprop.app.runs import Logs

        return Logs()

    def close(self) -> None:
        self.jobs.close()
        self.views.close()


def client_of(request: Request) -> str:
    """The page that asks: a random word that it sends along."""
    name = request.headers.get("x-client", "")
    return name if re.fullmatch(r"[a-z0-9]{1,32}", name) else ""


async def _index(state: State, _request: Request) -> Response:
    state.views.pool.submit(import_module, "tailprop.app.propagation")  # PyTorch, while the browser reads the page
    return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")


async def _upload(state: State, request: Request) -> Response:
    data = bytearray()
    async for part in request.stream():
        data += part
    key, photo = await state.views.once(partial(state.photos.add, bytes(data), request.query_params.get("name", "")))
    return JSONResponse(plain(_described(key, photo)))


async def _image(state: State, request: Request) -> Response:
    key = request.path_params["key"]
    return JSONResponse(plain(_described(key, await state.views.once(partial(state.photos.get, key)))))


def _described(key: str, photo: Photo) -> dict[str, Any]:
    width, height = photo.image.size
    return {"id": key, "name": photo.name, "width": width, "height": height}


async def _samples(_state: State, _request: Request) -> Response:
    return JSONResponse([{"id": name, "name": title} for name, title in SAMPLES.items()])


async def _operator(state: State, request: Request) -> Response:
    body = await read_body(request)

    def compute(check: Callable[[], None]) -> Any:
        from tailprop.app import propagation

        return propagation.compute(propagation.Propagation.parse(body), state.photos, check)

    return frame(*await state.views.run(client_of(request), "operator", compute))


def _of_runs(name: str, *arguments: Any) -> Callable[[], Any]:
    """A function of `runs`, which is imported where it is called."""
    return lambda: getattr(import_module("tailprop.app.runs"), name)(*arguments)


async def _models(state: State, _request: Request) -> Response:
    return JSONResponse(plain(await state.views.once(_of_runs("listing", state.library))))


async def _inside(state: State, request: Request) -> Response:
    body = await read_body(request)

    def compute(check: Callable[[], None]) -> Any:
        from tailprop.app import inside

        loaded, photo = state.library.load(text(body, "model")), state.photos.get(text(body, "image"))
        check()
        return inside.inspect(loaded, photo)

    return frame(*await state.views.run(client_of(request), "inside", compute))


async def _field(state: State, request: Request) -> Response:
    body = await read_body(request)

    def compute(check: Callable[[], None]) -> Any:
        from tailprop.app import inside

        loaded, photo = state.library.load(text(body, "model")), state.photos.get(text(body, "image"))
        check()
        return inside.field_at(loaded, photo, (number(body, "x", 0, 1), number(body, "y", 0, 1)))

    return frame(*await state.views.run(client_of(request), "field", compute))


async def _set(state: State, request: Request) -> Response:
    entry = state.library.find(text(await read_body(request), "model"))

    def work(job: Job) -> Any:
        from tailprop.app import inside

        return Summary(inside.compare(state.library.load(entry.key), state.images, job.tick))

    return JSONResponse(plain(state.jobs.start(f"{entry.name} over a set of images", work).summary()))


async def _restore(state: State, request: Request) -> Response:
    body = await read_body(request)
    entry, photo = state.library.find(text(body, "model")), state.photos.get(text(body, "image"))

    def work(job: Job) -> Any:
        from tailprop.app import restoring

        return restoring.restore(state.library.load(entry.key), photo, restoring.Damage.parse(body), job)

    return JSONResponse(plain(state.jobs.start(f"{photo.name} by {entry.name}", work).summary()))


async def _restorer(state: State, request: Request) -> Response:
    """What a restoration network was trained for."""
    entry = state.library.find(request.path_params["key"])
    return JSONResponse(plain(await state.views.once(_of_runs("trained_for", entry))))


async def _job_events(state: State, request: Request) -> Response:
    """The progress of a job as server-sent events, until it is over."""
    job = state.jobs.get(request.path_params["key"])

    async def events() -> AsyncIterator[str]:
        seen = -1
        while not state.jobs.closing:
            if job.version != seen:
                seen = job.version
                yield f"data: {json.dumps(plain(job.summary()))}\n\n"
                if job.is_over:
                    return
            await asyncio.sleep(0.05)

    return StreamingResponse(events(), media_type="text/event-stream")


async def _cancel(state: State, request: Request) -> Response:
    state.jobs.get(request.path_params["key"]).stop = True
    return JSONResponse({})


async def _job_image(state: State, request: Request) -> Response:
    job = state.jobs.get(request.path_params["key"])
    if job.state != "done":
        raise ValueError("this job has no image yet")
    png = await state.views.once(partial(job.result.png, request.path_params["which"]))
    return Response(png, media_type="image/png")


async def _run(state: State, request: Request) -> Response:
    entry = state.library.find(request.path_params["key"])
    return JSONResponse(plain(await state.views.once(_of_runs("describe", entry))))


async def _log(state: State, request: Request) -> Response:
    entry, after = state.library.find(request.path_params["key"]), request.query_params.get("after", "0")
    if not (after.isascii() and after.isdecimal() and len(after) < 12):
        raise ValueError("after must be a number of rows")
    return JSONResponse(plain(await state.views.once(lambda: state.logs.since(entry, int(after)))))


async def _run_picture(state: State, request: Request) -> Response:
    entry = state.library.find(request.path_params["key"])
    png = await state.views.once(_of_runs("artifact", entry, request.path_params["name"]))
    return Response(png, media_type="image/png")


async def _differences(state: State, request: Request) -> Response:
    keys = (await read_body(request)).get("runs")
    if not isinstance(keys, list) or not 1 <= len(keys) <= MOST_COMPARED:
        raise ValueError(f"choose up to {MOST_COMPARED} runs")
    entries = [state.library.find(str(key)) for key in keys]
    return JSONResponse(plain(await state.views.once(_of_runs("compare_settings", entries))))


def _guarded(state: State, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint whose errors are answers for the page."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(state, request)
        except StaleError:
            return JSONResponse({"error": "a newer request replaced this one"}, 409)
        except BodyTooLargeError as error:
            return JSONResponse({"error": str(error)}, 413)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            return JSONResponse({"error": explain(error)}, 400 if isinstance(error, ValueError | OSError) else 500)

    return answer


ROUTES: Final[dict[str, tuple[str, Endpoint]]] = {
    "/": ("GET", _index),
    "/api/samples": ("GET", _samples),
    "/api/images": ("POST", _upload),
    "/api/images/{key}": ("GET", _image),
    "/api/operator": ("POST", _operator),
    "/api/models": ("GET", _models),
    "/api/inside": ("POST", _inside),
    "/api/inside/field": ("POST", _field),
    "/api/inside/set": ("POST", _set),
    "/api/restorers/{key}": ("GET", _restorer),
    "/api/restore": ("POST", _restore),
    "/api/jobs/{key}/events": ("GET", _job_events),
    "/api/jobs/{key}/cancel": ("POST", _cancel),
    "/api/jobs/{key}/{which}.png": ("GET", _job_image),
    "/api/runs/{key}": ("GET", _run),
    "/api/runs/{key}/log": ("GET", _log),
    "/api/runs/{key}/pictures/{name}": ("GET", _run_picture),
    "/api/differences": ("POST", _differences),
}


def create_app(state: State, port: int) -> Any:
    """The application for a page at this port."""
    routes: list[Any] = [
        Route(path, _guarded(state, endpoint), methods=[method]) for path, (method, endpoint) in ROUTES.items()
    ]
    routes.append(Mount("/static", StaticFiles(directory=STATIC)))
    return Guard(Starlette(routes=routes), port)
