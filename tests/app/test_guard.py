"""Who may ask the server, and what it answers to others."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.app.conftest import Server

JSON = {"Content-Type": "application/json"}


def ask(server: Server, method: str, path: str, headers: dict[str, str], body: Any = None) -> tuple[int, dict[str, str], bytes]:
    """A request with exactly these headers."""
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        if isinstance(body, bytes) and "Content-Length" not in headers and "Transfer-Encoding" not in headers:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def own(server: Server, **more: str) -> dict[str, str]:
    return {"Host": urlsplit(server.address).netloc, "Origin": server.address, **more}


def test_page_has_a_policy_that_loads_nothing_from_elsewhere(server: Server) -> None:
    status, headers, body = ask(server, "GET", "/", own(server))
    assert status == 200
    assert b"<title>TailProp</title>" in body
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


def test_no_file_of_the_page_names_another_host() -> None:
    from tailprop.app.pages import STATIC

    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # the name of a namespace
        assert "http://" not in text, path
        assert "https://" not in text, path
        assert not [word for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(") if word in text], (
            path
        )


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", ""])
def test_other_hosts_are_refused(server: Server, host: str) -> None:
    """DNS rebinding: a web site whose name has become 127.0.0.1."""
    status, _, body = ask(server, "GET", "/api/models", {"Host": host})
    assert status == 403
    assert "127.0.0.1" in json.loads(body)["error"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", None])
def test_posts_of_other_sites_are_refused(server: Server, origin: str | None) -> None:
    headers = {"Host": urlsplit(server.address).netloc} | ({} if origin is None else {"Origin": origin})
    assert ask(server, "POST", "/api/operator", headers | JSON, b"{}")[0] == 403


def test_cross_site_reads_and_other_methods_are_refused(server: Server) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert ask(server, "GET", "/api/samples", own(server, **{"Sec-Fetch-Site": site}))[0] == status
    assert ask(server, "DELETE", "/api/models", own(server))[0] == 405


def test_long_bodies_are_refused(server: Server) -> None:
    status, _, body = ask(server, "POST", "/api/images", own(server, **{"Content-Length": str(1 << 40)}))
    assert (status, json.loads(body)["error"]) == (413, "the file is larger than 32 MB; make it smaller first")
    part = b"%x\r\n" % (1 << 20) + b"\0" * (1 << 20) + b"\r\n"
    status, _, body = ask(
        server, "POST", "/api/images", own(server, **{"Transfer-Encoding": "chunked"}), [part] * 33 + [b"0\r\n\r\n"]
    )
    assert (status, json.loads(body)["error"]) == (413, "the file is larger than 32 MB; make it smaller first")
    status, _, body = ask(server, "POST", "/api/operator", own(server), b"[" * 100_000)
    assert (status, json.loads(body)["error"]) == (400, "the request is too long")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/api/operator", b"{", "the request is not valid json"),
        ("/api/operator", b"[]", "the request must be a JSON object"),
        ("/api/operator", b'{"size": 100000}', "size must be a number from 128 to 512"),
        ("/api/operator", b'{"size": 256, "lam": NaN}', "lam must be a number"),
        ("/api/inside", b'{"model": "../../etc", "image": "astronaut"}', "no longer there"),
        ("/api/inside", b'{"model": "/etc/passwd", "image": "astronaut"}', "no longer there"),
        ("/api/restore", b'{"model": "x", "image": 5}', "no longer there"),
        ("/api/differences", b'{"runs": "all"}', "choose up to 6 runs"),
        ("/api/jobs/nonsense/cancel", b"{}", "no longer has this job"),
    ],
)
def test_wrong_requests_get_one_line(server: Server, path: str, body: bytes, message: str) -> None:
    status, _, answer = ask(server, "POST", path, own(server) | JSON, body)
    error = json.loads(answer)["error"]
    assert status == 400
    assert message in error
    assert "\n" not in error


@pytest.mark.parametrize(
    "path", ["/static/../command.py", "/static/%2e%2e/command.py", "/static/..%2fcommand.py", "/api/images/../../etc/passwd"]
)
def test_no_file_outside_the_page_is_read(server: Server, path: str) -> None:
    status, _, body = ask(server, "GET", path, own(server))
    assert status in (400, 404)
    assert b"import" not in body
    assert b"root:" not in body
