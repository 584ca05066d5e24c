"""The page on a server in a thread of this process, and Debian's Chromium, which no test downloads."""

import base64
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

import tailprop_cli
from tailprop.app.command import create_config, create_state, listen
from tailprop.app.options import App
from tests.helpers.runs import write_recipe
from tests.helpers.tiny_tasks import write_tiny

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    assert found, "the tests of the page need Chromium: `make chromium` installs it, or apt-get install chromium"
    return found


PATIENCE = 60  # seconds; also enough where other tests compute


@dataclass
class Server:
    """A running page."""

    address: str
    state: Any


@pytest.fixture(scope="session")
def app_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three short runs: two classifiers that differ in the learning rate, and a restorer."""
    root = tmp_path_factory.mktemp("app")
    with contextlib.chdir(root):
        for name, lr in (("slow", 1e-4), ("fast", 2e-3)):
            recipe = write_recipe(Path(f"{name}.yaml"), optim={"lr": lr})
            assert tailprop_cli.main(["train", str(recipe), "--run.out", f"runs/{name}"]) == 0
        recipe = write_tiny("restore")
        assert tailprop_cli.main(["train", str(recipe), "--run.out", "runs/sub/restorer"]) == 0
    return root / "runs"


@pytest.fixture(scope="session")
def server(app_runs: Path) -> Iterator[Server]:
    with listen(0) as listener:
        port = listener.getsockname()[1]
        state = create_state(App(runs=app_runs, threads=1))
        running = uvicorn.Server(create_config(state, port))
        thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
        thread.start()
        until = time.monotonic() + 30
        while not running.started:
            assert thread.is_alive()
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.02)
        yield Server(f"http://127.0.0.1:{port}", state)
        running.should_exit = True
        thread.join(10)
        state.close()
        assert not thread.is_alive()


@pytest.fixture(scope="module")  # while it is open, an event loop runs in the thread of the tests
def browser() -> Iterator[Browser]:
    flags = ["--disable-gpu", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=flags)
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page, what it asked for, and what it complained about."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)  # parts of complaints that a test provokes

    def open(self, part: str, ready: str | None = None) -> Page:
        self.page.goto(f"{self.address}/{part}")
        if ready:
            self.page.wait_for_selector(ready, timeout=1000 * PATIENCE)
        return self.page

    def pixels(self, selector: str) -> list[int]:
        """A sample of the pixels of a canvas."""
        script = """s => { const c = document.querySelector(s);
            const copy = new OffscreenCanvas(c.width, c.height).getContext("2d", {willReadFrequently: true});
            copy.drawImage(c, 0, 0);
            const d = copy.getImageData(0, 0, c.width, c.height).data;
            const out = []; for (let i = 0; i < d.length; i += 4 * 97) out.push(d[i], d[i + 1], d[i + 2]); return out; }"""
        found: list[int] = self.page.evaluate(script, selector)
        return found

    def until(self, holds: str, argument: object = None, seconds: float = PATIENCE) -> None:
        """Wait until a JavaScript function of the argument is true. Playwright's own way would need eval in the page."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(holds, argument):
            assert time.monotonic() < end, f"not within {seconds} s: {holds}"
            self.page.wait_for_timeout(20)

    def until_changed(self, selector: str, before: list[int]) -> list[int]:
        """Wait until a canvas has other pixels."""
        end = time.monotonic() + PATIENCE
        while (now := self.pixels(selector)) == before:
            assert time.monotonic() < end, f"{selector} did not change"
            self.page.wait_for_timeout(20)
        return now

    def give(self, name: str, data: bytes) -> None:
        """Drop a file on the page."""
        script = """([name, data]) => { const files = new DataTransfer();
            files.items.add(new File([Uint8Array.from(atob(data), c => c.charCodeAt(0))], name));
            const drop = new DragEvent("drop", {bubbles: true, cancelable: true, dataTransfer: files});
            document.querySelector("main").dispatchEvent(drop); }"""
        self.page.evaluate(script, [name, base64.b64encode(data).decode()])

    def check(self) -> None:
        elsewhere = [url for url in self.requests if not url.startswith(f"{self.address}/")]
        assert not elsewhere, f"requests left the machine: {elsewhere}"
        assert self.requests
        found = [text for text in self.complaints if not any(part in text for part in self.expected)]
        assert not found, found


@pytest.fixture
def watched(server: Server, browser: Browser) -> Iterator[Watched]:
    """A new page; at the end no request may have left 127.0.0.1, and the console must have no errors."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    seen = Watched(page, server.address)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: seen.complaints.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    yield seen
    context.close()
    seen.check()
