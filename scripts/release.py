"""Whether a tag is the release that the tree says it is; prints what the changelog says of it.

The version stands in ``fp8gemm/__init__.py``, from where the wheel has it too: a checkout without tags, or without git,
knows it. Exit code 0: the tag, the version, the changelog and CITATION.cff agree. 1: they do not.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fp8gemm import __version__  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import note  # noqa: E402

_ENTRY = re.compile(r"^## \[(?P<name>[^\]]+)\](?P<date> - \d{4}-\d\d-\d\d)?$", re.MULTILINE)
_NEXT = re.compile(r"\bthis is what (?P<version>\S+) will be\b", re.IGNORECASE)


def entries(changelog: str) -> dict[str, str]:
    """What stands below each heading, by its version or "Unreleased", newest first."""
    found = list(_ENTRY.finditer(changelog))
    ends = [each.start() for each in found[1:]] + [len(changelog)]
    return {each["name"]: changelog[each.end() : end].strip() for each, end in zip(found, ends, strict=True)}


def stands_for(changelog: str) -> str | None:
    """The version that a tree with this changelog has: the next one, where something is unreleased, else the newest."""
    found = entries(changelog)
    unreleased = found.pop("Unreleased", "")
    if not unreleased:
        return next(iter(found), None)
    said = _NEXT.search(unreleased)
    return said["version"] if said and said["version"] not in found else None


def complaints(tag: str, changelog: str, citation: str) -> Iterator[str]:
    """What speaks against a release of that tag."""
    found = entries(changelog)
    if tag != f"v{__version__}":
        yield f"expected the tag v{__version__}, as fp8gemm.__version__ has it; got {tag or 'none'}"
    if found.get("Unreleased"):
        yield "CHANGELOG.md: expected nothing under [Unreleased]; what is there goes below the version and its date"
    elif not re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        yield f"CHANGELOG.md: expected a heading ## [{__version__}] - YYYY-MM-DD"
    elif next(name for name in found if name != "Unreleased") != __version__:
        yield f"CHANGELOG.md: expected {__version__} on top"
    if f"\nversion: {__version__}\n" not in citation:
        yield f"CITATION.cff: expected version: {__version__}"


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Compare what lies in ``root`` and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag", metavar="TAG", help="such as v0.1.0")
    tag = parser.parse_args(argv).tag
    changelog = (root / "CHANGELOG.md").read_text()
    found = list(complaints(tag, changelog, (root / "CITATION.cff").read_text()))
    for complaint in found:
        note(f"release: {complaint}")
    if found:
        return Exit.FAILED
    print(entries(changelog)[__version__])
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
