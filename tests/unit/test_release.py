"""A release: the tag, the version, the changelog and the citation say the same, and the tree knows it without tags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fp8gemm
from tests.children import ROOT
from tests.scripts import load_script

release = load_script("release")

CITATION = (ROOT / "CITATION.cff").read_text()
VERSION = fp8gemm.__version__
TOLD = "- A product.\n- Another."
RELEASED = (
    f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - 2026-01-02\n\n{TOLD}\n\n## [0.0.1] - 2025-01-02\n\nOld.\n"
)


def test_the_tree_has_the_version_that_its_changelog_says() -> None:
    assert release.stands_for((ROOT / "CHANGELOG.md").read_text()) == VERSION
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)


def test_what_is_unreleased_is_of_a_version_of_its_own() -> None:
    assert release.stands_for(RELEASED) == VERSION
    said = "## [Unreleased]\n\nThis is what 9.9.9 will be.\n\n- More."
    assert release.stands_for(RELEASED.replace("## [Unreleased]", said)) == "9.9.9"
    for nameless in ("- More.", f"This is what {VERSION} will be.\n\n- More."):
        assert release.stands_for(RELEASED.replace("## [Unreleased]", f"## [Unreleased]\n\n{nameless}")) is None


def test_a_release_prints_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "CHANGELOG.md").write_text(RELEASED)
    (tmp_path / "CITATION.cff").write_text(CITATION)
    assert release.main([f"v{VERSION}"], tmp_path) == 0
    assert capsys.readouterr().out == f"{TOLD}\n"


@pytest.mark.parametrize(
    ("tag", "changelog", "citation", "said"),
    [
        ("v9.9.9", RELEASED, CITATION, f"expected the tag v{VERSION}"),
        (VERSION, RELEASED, CITATION, f"expected the tag v{VERSION}"),
        ("", RELEASED, CITATION, "got none"),
        (f"v{VERSION}", RELEASED.replace("[Unreleased]", "[Unreleased]\n\n- More."), CITATION, "nothing under"),
        (f"v{VERSION}", RELEASED.replace(" - 2026-01-02", ""), CITATION, "YYYY-MM-DD"),
        (f"v{VERSION}", f"## [9.9.9] - 2027-01-02\n\n{RELEASED}", CITATION, "on top"),
        (f"v{VERSION}", RELEASED, "title: fp8gemm\nversion: 9.9.9\n", "CITATION.cff"),
    ],
)
def test_what_does_not_agree_is_named(tag: str, changelog: str, citation: str, said: str) -> None:
    (complaint,) = release.complaints(tag, changelog, citation)
    assert said in complaint


def test_a_tag_that_is_not_the_trees_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["v9.9.9"]) == 1
    told = capsys.readouterr()
    assert told.err.startswith(f"release: expected the tag v{VERSION}") and not told.out
