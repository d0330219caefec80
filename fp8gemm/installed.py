"""What is installed beside this package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, by the name that `pip` knows; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
