"""An S3 server for tests: moto's, as its own process, with accounts and keys that it checks."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from xml.etree import ElementTree

_LISTENS = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
_LOCK = (
    b"<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>"
    b"<Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>"
)
_READS = ("s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket")
_MAY_DO_ANYTHING = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}'
_IAM = "AWS4-HMAC-SHA256 Credential=setup/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=0"


@dataclass(frozen=True, slots=True)
class S3Account:
    """Where the server is, and a key that it takes."""

    endpoint: str
    access_key_id: str
    secret_access_key: str

    def environment(self) -> dict[str, str]:
        """Return what a process needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
        }


class S3Server:
    """The server, with one bucket; leaving the context ends it.

    Args:
        host: the address that it listens on.
    """

    BUCKET = "artifacts"
    LOCKED = "archive"
    """A bucket with versions, whose objects are locked for a day."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        # Accounts are made before keys are checked: from `reset-auth` on every request must be signed with one.
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", host, "-p", "0"],
            env={"INITIAL_NO_AUTH_ACTION_COUNT": "1000", "NO_COLOR": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            endpoint = self._wait_until_it_listens()
            self._ask(f"{endpoint}/{self.BUCKET}", method="PUT")
            locked = f"{endpoint}/{self.LOCKED}"
            self._ask(locked, headers={"x-amz-bucket-object-lock-enabled": "true"}, method="PUT")
            self._ask(f"{locked}?object-lock", _LOCK, {"Content-Type": "application/xml"}, method="PUT")
            self.account = S3Account(endpoint, *self._make_key(endpoint, "tester", _MAY_DO_ANYTHING))
            archiver, reader = _policy(*_READS, "s3:PutObject"), _policy(*_READS)
            self.archiver = S3Account(endpoint, *self._make_key(endpoint, "archiver", archiver))
            """May write and read, not delete."""
            self.reader = S3Account(endpoint, *self._make_key(endpoint, "reader", reader))
            """May read."""
            self._ask(f"{endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _wait_until_it_listens(self) -> str:
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if (found := _LISTENS.search(line)) is not None:
                return found[1]
        raise RuntimeError("the S3 server did not start: " + "".join(said))

    def _make_key(self, endpoint: str, name: str, document: str) -> tuple[str, str]:
        user = {"UserName": name, "Version": "2010-05-08"}
        policy = {"PolicyName": "all", "PolicyDocument": document}
        for action, fields in (("CreateUser", {}), ("PutUserPolicy", policy)):
            self._ask(endpoint, urlencode({"Action": action, **user, **fields}).encode(), {"Authorization": _IAM})
        form = urlencode({"Action": "CreateAccessKey", **user}).encode()
        made = ElementTree.fromstring(self._ask(endpoint, form, {"Authorization": _IAM}))
        key, secret = (made.findtext(f".//{{*}}{name}") for name in ("AccessKeyId", "SecretAccessKey"))
        assert key and secret
        return key, secret

    def _ask(
        self, url: str, data: bytes | None = None, headers: dict[str, str] | None = None, *, method: str = "POST"
    ) -> str:
        with urlopen(Request(url, data=data, headers=headers or {}, method=method), timeout=30) as answer:
            return str(answer.read().decode())


def _policy(*actions: str) -> str:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})
