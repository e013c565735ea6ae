"""Certificates of authorities that exist for one test run."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Certificates:
    """Two authorities: ours, and another one. Files hold certificate, chain and key together."""

    folder: Path
    ours: trustme.CA
    another: trustme.CA

    @classmethod
    def make(cls, folder: Path) -> "Certificates":
        """Make them, and write both authorities' certificates."""
        made = cls(folder, trustme.CA(), trustme.CA())
        made.ours.cert_pem.write_to_path(made.authority)
        made.another.cert_pem.write_to_path(made.other_authority)
        return made

    @property
    def authority(self) -> Path:
        """What clients trust."""
        return self.folder / "authority.pem"

    @property
    def other_authority(self) -> Path:
        """What signed none of our certificates."""
        return self.folder / "another.pem"

    def issue(self, name: str, *hosts: str, is_expired: bool = False) -> Path:
        """Return a certificate of our authority for these hosts, written (again) into `<name>.pem`."""
        end = datetime.now(UTC) - timedelta(days=1) if is_expired else None
        path = self.folder / f"{name}.pem"
        path.unlink(missing_ok=True)
        self.ours.issue_cert(*hosts, not_after=end).private_key_and_cert_chain_pem.write_to_path(path)
        return path
