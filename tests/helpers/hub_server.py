"""A server on 127.0.0.1 that speaks as much of the Hugging Face Hub's API as downloads need."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve(
    repositories: dict[str, dict[str, bytes]], gated: tuple[str, ...] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Serve repositories; yields the address, and a list that collects what is asked for.

    Args:
        repositories: Name to files.
        gated: Names of those that may not be read without a login.
    """
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path.split("?")[0]
            asked.append(f"{self.command} {path}")
            if path.startswith("/api/models/"):
                name = path.removeprefix("/api/models/").removesuffix("/revision/main")
                files = repositories.get(name)
                data = json.dumps(
                    {"id": name, "sha": COMMIT, "siblings": [{"rfilename": f} for f in files or ()]}
                )
                self._send(
                    200 if files is not None else 401, data.encode(), {}, body=body, name=name
                )
                return
            name, _, file = path[1:].partition("/resolve/main/")
            content = repositories.get(name, {}).get(file)
            if name in gated or content is None:
                self._send(403 if name in gated else 404, b"", {}, body=body, name=name)
                return
            headers = {
                "ETag": f'"{sha256(content).hexdigest()}"',
                "X-Repo-Commit": COMMIT,
                "Accept-Ranges": "bytes",
            }
            self._send(200, content, headers, body=body, name=name)

        def _send(
            self, code: int, data: bytes, headers: dict[str, str], *, body: bool, name: str
        ) -> None:
            self.send_response(code)
            if code != 200:
                kind = {401: "RepoNotFound", 403: "GatedRepo", 404: "EntryNotFound"}[code]
                headers = {"X-Error-Code": kind, "X-Error-Message": f"{kind} {name}"}
            for key, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
