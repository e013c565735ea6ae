"""No secret of a URL is shown."""

import pytest
from pydantic import SecretStr

from apc_bus.secrecy import hide


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqps://me:hunter2@host/v?cafile=/ca.pem", "amqps://me:***@host/v?cafile=/ca.pem"),
        ("postgresql:///apc?host=/run&user=me&password=hunter2", "postgresql:///apc?host=/run&user=me&password=***"),
        (
            "postgresql://me:x@db/apc?sslmode=require&PASSWORD=hunter2",
            "postgresql://me:***@db/apc?sslmode=require&PASSWORD=***",
        ),
        ("postgresql://db/apc?sslpassword=hunter2", "postgresql://db/apc?sslpassword=***"),
        ("https://hooks.example/T0?token=hunter2&sig=hunter2", "https://hooks.example/T0?token=***&sig=***"),
        ("https://hooks.example/T0?hunter2", "https://hooks.example/T0?***"),
        ("https://store.example/x#hunter2", "https://store.example/x#***"),
        ("s3://bucket/x?X-Amz-Signature=hunter2&region=eu", "s3://bucket/x?X-Amz-Signature=***&region=eu"),
        ("https://hunter2:@host/x", "https://***@host/x"),
        ("https://hunter2@host/x", "https://***@host/x"),
        ("amqp://me@host/v", "amqp://me@host/v"),
        ("http://[hunter2/", "***"),
        ("http://collector:4318", "http://collector:4318"),
        ("file:///var/lib/apc", "file:///var/lib/apc"),
    ],
)
def test_what_a_url_hides(url: str, shown: str) -> None:
    assert hide(url) == hide(SecretStr(url)) == shown


def test_each_of_several_urls_is_hidden() -> None:
    urls = SecretStr("amqp://me:hunter2@one/v,amqp://me:hunter2@two/v?token=hunter2")

    assert hide(urls) == "amqp://me:***@one/v,amqp://me:***@two/v?token=***"


def test_other_secrets_are_hidden_as_a_whole() -> None:
    assert hide(SecretStr("hunter2")) == "***"
    assert hide("hunter2.pem") == "hunter2.pem"
