"""A local S3 server (moto) that fails some of the requests: it refuses them, hangs up, or cuts an answer off."""

import itertools
import threading
from contextlib import contextmanager

_KINDS = ("refuse", "cut", "forget")


class Flaky:
    """A WSGI application that fails.

    Args:
        app: The server.
    """

    def __init__(self, app):
        self._app, self._lock = app, threading.Lock()
        self.fail(0)

    def fail(self, every):
        """From now on, fail the first request and every so-many-th after it; none with 0."""
        self._every, self._numbers, self.failures = every, itertools.count(), 0

    def __call__(self, environ, start_response):
        with self._lock:
            number = next(self._numbers)
            kind = (
                None
                if not self._every or number % self._every
                else _KINDS[self.failures % len(_KINDS)]
            )
            self.failures += kind is not None
        if kind == "refuse":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
            start_response("503 Slow Down", [("Content-Length", "0"), ("Connection", "close")])
            return [b""]
        kept = []
        body = b"".join(
            self._app(environ, lambda status, headers, *more: kept.append((status, headers)))
        )
        (status, headers) = kept[0]
        if kind == "forget":  # what was asked is done, but the answer says something else
            start_response("500 Internal Error", [("Content-Length", "0"), ("Connection", "close")])
            return [b""]
        start_response(status, headers)
        return [body[: len(body) // 2] if kind == "cut" else body]


@contextmanager
def flaky_store():
    """Yield the address of a server, and what fails in it."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        def log(self, *args):
            pass

    app = Flaky(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", app
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
