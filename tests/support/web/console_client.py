"""A person at a deployed web console: logs in over TLS, as a browser does, and asks the API."""

import http.client
import json
import ssl
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any


class ConsoleClient:
    """Somebody who trusts the deployment's own certificate.

    Args:
        port: of the console on 127.0.0.1.
        certificate: what `apc deploy init` has made.
    """

    def __init__(self, port: int, certificate: Path) -> None:
        self._port = port
        self._certificate = certificate
        self._cookie = ""

    def answers(self) -> bool:
        """Return whether somebody with this certificate answers."""
        try:
            return self._send("GET", "/", None)[0] == 200
        except OSError:
            return False

    def log_in(self, name: str, password: str) -> None:
        """Log in, or fail the test."""
        status, _, cookie = self._send("POST", "/api/v1/login", {"name": name, "password": password})
        assert status == 204, status
        self._cookie = "; ".join(f"{one}={morsel.value}" for one, morsel in SimpleCookie(cookie).items())

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of the API's answer; fail the test when it is a problem."""
        status, answer, _ = self._send(method, f"/api/v1{path}", body)
        assert status < 300, answer
        return json.loads(answer)

    def _send(self, method: str, path: str, body: Any) -> tuple[int, bytes, str]:
        trusting = ssl.create_default_context(cafile=str(self._certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=30, context=trusting)
        given = {
            "Cookie": self._cookie,
            "Origin": f"https://127.0.0.1:{self._port}",
            "Content-Type": "application/json",
        }
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {name: value for name, value in given.items() if value})
            response = connection.getresponse()
            return response.status, response.read(), response.headers.get("set-cookie", "")
        finally:
            connection.close()
