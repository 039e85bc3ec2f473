"""Drive an installed Firefox through Marionette, the protocol that it speaks itself: no other program is needed."""

import json
import shutil
import socket
import subprocess
import time

BROWSERS = ("firefox-esr", "firefox")
PREFERENCES = {
    "marionette.port": 0,  # any that is free; Firefox writes it to a file of its profile
    "network.proxy.type": 1,  # a proxy that does not exist: nothing but files can be loaded
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
}


def find_firefox():
    """The Firefox that is installed; None for none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Firefox:
    """A headless Firefox with a profile of its own, in a folder that is empty."""

    def __init__(self, path, folder, seconds=60.0):
        lines = [
            f"user_pref({json.dumps(name)}, {json.dumps(value)});"
            for name, value in PREFERENCES.items()
        ]
        (folder / "user.js").write_text("\n".join(lines), encoding="utf-8")
        options = ["--headless", "--no-remote", "--marionette", "--remote-allow-system-access"]
        command = [path, *options, "--profile", str(folder), "about:blank"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._socket = _connect(folder / "MarionetteActivePort", time.monotonic() + seconds)
            self._socket.settimeout(seconds)
            self._receive()  # its greeting
            self._sent = 0
            self.call("WebDriver:NewSession", {})
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def call(self, name, parameters):
        """What a command returns."""
        self._sent += 1
        message = json.dumps([0, self._sent, name, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, number, error, result = self._receive()
        assert number == self._sent
        assert error is None, error
        return result

    def evaluate(self, function, *arguments):
        """What an asynchronous function returns in the page."""
        script = f"const values = [...arguments], done = values.pop(); ({function.strip()})(...values).then(done, done);"
        return self.call(
            "WebDriver:ExecuteAsyncScript", {"script": script, "args": list(arguments)}
        )["value"]

    def messages(self, path):
        """What the browser's console says of a page."""
        self.call("Marionette:SetContext", {"value": "chrome"})
        script = "return Services.console.getMessageArray().map((one) => one.message)"
        found = self.call("WebDriver:ExecuteScript", {"script": script, "args": []})["value"]
        self.call("Marionette:SetContext", {"value": "content"})
        return [one for one in found if path.name in one]

    def open(self, path):
        """Open a page from disk, and wait until it is drawn."""
        self.call("WebDriver:Navigate", {"url": path.resolve().as_uri()})
        for _ in range(400):
            if self.evaluate("async () => 'ready' in document.documentElement.dataset"):
                return
            time.sleep(0.05)
        raise AssertionError(self.evaluate("async () => document.body.textContent.slice(-300)"))

    def close(self):
        """End the browser."""
        self._socket.close()
        self._process.terminate()
        self._process.wait(30)

    def _receive(self):
        size = b""
        while (digit := self._socket.recv(1)) != b":":
            assert digit, "Firefox closed the connection"
            size += digit
        data = b""
        while len(data) < int(size):
            data += self._socket.recv(int(size) - len(data))
        return json.loads(data)


def _connect(port_file, deadline):
    while time.monotonic() < deadline:
        if port_file.is_file() and (port := port_file.read_text().strip()):
            return socket.create_connection(("127.0.0.1", int(port)))
        time.sleep(0.05)
    raise AssertionError("Firefox did not start")
