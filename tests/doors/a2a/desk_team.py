"""The desk as a module, for processes."""

from tests.doors.a2a.conftest import desk

team = desk()
