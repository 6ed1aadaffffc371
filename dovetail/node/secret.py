"""A site's secret: 128 bits that no one else has, mixed into every random number of its runs.

    shop.site/secret    32 hexadecimal digits, drawn from the system when the site is first used

The seed of a run travels; with the secret nobody who knows it, the code and all settings can
compute what this site draws. Each time that a run starts here it has a key of its own, derived from
the secret: a driver that starts twice does not meet the same network again.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from dovetail.errors import ConfigError
from dovetail.models import derive_key
from dovetail.network.retry import write_private

#: Bytes of a secret.
SECRET_BYTES = 16


def site_secret(site_folder: Path) -> bytes:
    """The secret of this site; drawn when it is first asked for.

    Raises:
        ConfigError: the file is not what was written, or cannot be.
    """
    path = site_folder / "secret"
    try:
        if not path.exists():
            write_private(path, f"{secrets.token_hex(SECRET_BYTES)}\n".encode())
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: the secret of this site cannot be kept ({error}); allow writing there"
        ) from None
    if not re.fullmatch(f"[0-9a-f]{{{2 * SECRET_BYTES}}}", text):
        raise ConfigError(
            f"{path} is not the secret of this site, which has {2 * SECRET_BYTES} hexadecimal "
            "digits; put it back, or delete it: runs that are saved go on without it"
        )
    return bytes.fromhex(text)


def run_key(secret: bytes, driver: str, number: int) -> bytes:
    """Key that is mixed in when this driver's run of this number starts here."""
    return derive_key(secret, "run", driver, str(number))
