"""What somebody who joins meets: workflows, forms, hooks and pages; what they call and name is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import fp8gemm
from fp8gemm import settings
from fp8gemm.cli import main as cli
from fp8gemm.tuning.hopper import CHIPS

yaml = pytest.importorskip("yaml", reason="pyyaml, which reads workflows and forms, is not installed")

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
TEXTS = [*FORMS, GITHUB / "PULL_REQUEST_TEMPLATE.md"]

TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = (ROOT / "pyproject.toml").read_text()
CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()
ATTACH = 'gh release create "$TAG" dist/* --verify-tag --title "fp8gemm $TAG" --notes-file notes/release.md'
UPLOAD = "pypa/gh-action-pypi-publish@release/v1"
_PATH = re.compile(r"(?<![\w./-])(?:docs|scripts|tests|fp8gemm|include)/[\w./-]*\w|\b[A-Z]{4,}\.md\b")


def loaded(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict), path
    return found


def commands(workflow: dict[Any, Any]) -> Iterator[str]:
    for job in workflow["jobs"].values():
        yield from (step["run"] for step in job["steps"] if "run" in step)


def unknown_targets(run: str) -> list[str]:
    """What a step asks of make that the Makefile lacks, or the whole step where it asks anything else."""
    words = run.split()
    return [word for word in words[1:] if word not in TARGETS] if words[0] == "make" and words[1:] else [run]


def test_workflows_only_call_targets_of_the_makefile() -> None:
    called = {path.stem: [*commands(loaded(path))] for path in WORKFLOWS}
    assert called == {
        "check": ["make check"],
        "dist": ["make matrix"],
        "nightly": ["make test-all"],
        "pages": ["make pages", "make docs"],
        "release": ["make release", ATTACH],
        "test": ["make test"],
    }
    assert [run for runs in called.values() for run in runs if unknown_targets(run)] == [ATTACH]
    assert unknown_targets("make chek") == ["chek"] and unknown_targets("pytest tests") == ["pytest tests"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_and_ends(path: Path) -> None:
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"} and workflow[True], "YAML reads the key `on` as a truth"
    for job in workflow["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 360
        uses = [step["uses"] for step in job["steps"] if "uses" in step]
        assert all(re.fullmatch(r"actions/[\w-]+@v\d+", use) for use in uses if use != UPLOAD)
        if job.get("permissions"):  # it may write, and so runs nothing of the tree
            assert path.stem == "release" and uses[0] == "actions/download-artifact@v4"
        else:
            assert uses[:2] == ["actions/checkout@v4", "actions/setup-python@v5"]


def test_a_release_is_built_from_a_tag_then_uploaded_without_a_secret_then_attached() -> None:
    workflow = loaded(GITHUB / "workflows" / "release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    build, publish, attach = workflow["jobs"].values()
    assert (publish["needs"], attach["needs"]) == ("build", "publish")
    assert publish["permissions"] == {"id-token": "write"} and publish["steps"][-1] == {"uses": UPLOAD}
    assert attach["permissions"] == {"contents": "write"}
    kept = {step["with"]["path"] for step in build["steps"] if "upload" in step.get("uses", "")}
    assert kept == {"dist/", "build/release.md"} and "secrets." not in str(workflow)


def test_the_tests_run_with_every_python_and_the_oldest_and_newest_torch() -> None:
    job = loaded(GITHUB / "workflows" / "test.yml")["jobs"]["test"]
    matrix = job["strategy"]["matrix"]
    assert matrix["python"] == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    (oldest,) = re.findall(r'"torch>=([\d.]+)"', PROJECT)
    assert matrix["torch"][0] == f"{oldest}.0" and matrix["torch"][-1] == "newest"
    rows = json.loads((ROOT / "docs" / "results" / "install-matrix.json").read_text())["rows"]
    assert {(row["python"], row["torch"]) for row in rows} >= set(product(matrix["python"], matrix["torch"]))
    assert list(job["env"]) == ["TORCH_RELEASE"] and "TORCH_RELEASE" in (ROOT / "scripts" / "venv.sh").read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_that_github_takes(path: Path) -> None:
    form = loaded(path)
    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "body", "labels"}
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    ids = [field["id"] for field in asked]
    assert len(set(ids)) == len(ids) > 0 and any(field.get("validations", {}).get("required") for field in asked)
    for field in form["body"]:
        assert field["type"] in ("markdown", "input", "textarea")
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]
    assert "fp8gemm info --json" in path.read_text()


def test_the_forms_are_of_a_bug_a_slow_shape_and_a_wrong_result() -> None:
    assert [path.stem for path in FORMS] == ["bug", "slow_shape", "wrong_result"]
    slow = (GITHUB / "ISSUE_TEMPLATE" / "slow_shape.yml").read_text()
    assert "fp8gemm explain" in slow and "fp8gemm bench --json" in slow


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_forms_name_commands_targets_and_files_that_are_there(path: Path) -> None:
    text = path.read_text()
    for line in re.findall(r"\bfp8gemm ((?:[a-z]+|--|\d)[^\n`.;]*)", text):
        words = [word for word in line.split() if re.fullmatch(r"[a-z]+", word)]
        assert words[0] in cli.COMMANDS, line
    assert set(re.findall(r"`make ([\w-]+)", text)) <= TARGETS
    missing = [name for name in _PATH.findall(text) if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("form", ["bench", "explain"])
def test_the_command_that_a_slow_shape_is_asked_for_is_one(form: str) -> None:
    fields = {field.get("id"): field for field in loaded(GITHUB / "ISSUE_TEMPLATE" / "slow_shape.yml")["body"]}
    words = fields[form]["attributes"]["description"].partition(": fp8gemm ")[2].split()
    assert words[0] == form and cli.command_parser(form).parse_args(words).run is not None


def test_hooks_have_the_versions_of_the_constraints() -> None:
    (repository,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    hooks = {hook["id"]: hook for hook in repository["hooks"]}
    assert hooks.keys() == {"ruff-check", "ruff-format", "clang-format"}
    for hook in hooks.values():
        (pin,) = hook["additional_dependencies"]
        assert pin in CONSTRAINTS and pin.startswith(f"{hook['entry'].split()[0]}==")
    headers = hooks["clang-format"]["files"]
    sources = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("[ise]*/**/*.cu*")]
    assert sources and all(re.search(headers, source) for source in sources)
    assert not re.search(headers, "tests/emulated/ptx.hpp")


def test_the_map_of_owners_has_every_room() -> None:
    lines = [line.split() for line in (GITHUB / "CODEOWNERS").read_text().splitlines() if line and line[0] != "#"]
    for path, *owners in lines:
        assert (ROOT / path.strip("/")).exists() and all(owner.startswith("@") for owner in owners), path
    packages = {f"/fp8gemm/{path.parent.name}/" for path in (ROOT / "fp8gemm").glob("*/__init__.py")}
    assert packages <= {path for path, *_ in lines}


def test_the_citation_says_what_the_project_says() -> None:
    citation = loaded(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert (citation["title"], citation["version"]) == ("fp8gemm", fp8gemm.__version__)
    assert citation["license"] in (ROOT / "LICENSE").read_text().split()[0]
    (holder,) = re.findall(r"Copyright \(c\) \d+ (.+)", (ROOT / "LICENSE").read_text())
    assert citation["authors"] == [{"name": holder}]
    assert f'description = "{citation["abstract"]}"' in PROJECT
    assert all(f'"{word}"' in PROJECT for word in citation["keywords"])


def test_the_changelog_has_the_form_that_it_names() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[0] == "[Unreleased]"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= kinds


def section(name: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text[text.index(f"**{name}**") :].split("\n\n**")[0]


def test_the_lists_of_what_to_touch_name_files_that_have_what_is_touched() -> None:
    """Each of these names, taken from the code, stands in a file that the list names."""
    has = {
        "A kernel family": (
            "class GemmKernel",
            "def family_of",
            "Config = ",
            "sizeof(KernelParams)",
            "def labelled_config",
        ),
        "An epilogue term": (
            "class Problem",
            "class BiasAddend",
            "def addends",
            "def gemm_reference",
            "enum class Addend",
        ),
        "A setting": ("FP8GEMM_NUM_SMS ", "class Settings", '"num_sms": 96', "_with_settings"),
        "A chip": (*(f'Chip("{name}"' for name in CHIPS), "def chip_of_device", '"NVIDIA H100 PCIe", "h100-pcie"'),
    }
    for name, wanted in has.items():
        named = re.findall(r"`([\w./]+\.(?:py|cuh))`", section(name))
        found = [path for each in named for path in named_files(each)]
        texts = "\n".join(path.read_text() for path in found)
        assert found and not [each for each in wanted if each not in texts], name


def named_files(name: str) -> list[Path]:
    places = (
        ROOT,
        ROOT / "include" / "fp8gemm",
        *(ROOT / "fp8gemm" / room for room in ("", "tuning", "kernels", "ops")),
    )
    return [place / name for place in (*places, ROOT / "fp8gemm" / "products") if (place / name).is_file()]


def test_every_setting_is_on_the_reference_page_that_contributors_are_sent_to() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    assert not [name for name in settings.variables() if f"| `{name}` |" not in page]
