"""Fetches the engines' Python, and vLLM's tests, into a folder outside the repository: ``make engines``.

Half a gigabyte is downloaded from the package registry, by pip: vLLM's source distribution, because its wheel has no
tests and seven times the size, SGLang's wheel, and what both import. With ``--compiled`` also vLLM's wheel, for the
machine code that tests on a GPU run. Nothing of it is installed where fp8gemm is.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.engines import FOLDER, VERSIONS, compiled, complete, packages, place

HASHES = {
    "vllm": "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
    "sglang": "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
    "vllm, compiled": "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
}
"""SHA-256 of the files."""

BUILD = ("setuptools-rust", "setuptools-scm", "setuptools>=77", "packaging")
"""What pip needs to ask vLLM's source distribution for its name."""

BESIDE = (
    *("pyzmq", "msgspec", "cachetools", "aiohttp", "cbor2", "requests", "oss-harmony", "openai", "pybase64"),
    *("uvloop", "py-cpuinfo", "prometheus_client", "blake3", "einops", "setproctitle", "dill", "orjson", "loguru"),
)
ALONE = ("compressed-tensors==0.18.0", "gguf==0.19.0", "triton==3.9.0")
"""Without what they depend on."""


def pip(*words: str, path: Path | None = None, **variables: str) -> None:
    """Run pip, with what lies in ``path`` importable."""
    environment = {**os.environ, **variables, **({"PYTHONPATH": str(path)} if path else {})}
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *words], check=True, env=environment)


def verified(folder: Path, engine: str) -> Path:
    """The one file in ``folder``.

    Raises:
        SystemExit: it is not the one that these tests were written for.
    """
    (path,) = folder.iterdir()
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != HASHES[engine]:
        sys.exit(f"{path.name}: expected SHA-256 {HASHES[engine]}, got {found}")
    return path


def fetch_vllm(scratch: Path) -> None:
    """vLLM's Python and its tests."""
    version, build, into = VERSIONS["vllm"], scratch / "build", scratch / "vllm"
    pip("install", "--target", str(build), *BUILD)
    words = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(into), f"vllm=={version}")
    pip("download", *words, path=build, VLLM_TARGET_DEVICE="empty", VLLM_VERSION_OVERRIDE=version)
    target = fresh(place("vllm"))
    with tarfile.open(verified(into, "vllm")) as archive:
        for member in archive.getmembers():
            parts = Path(member.name).parts[1:]
            if member.isfile() and parts[0] in ("vllm", "tests") and member.name.endswith((".py", ".json")):
                write(target.joinpath(*parts), archive.extractfile(member).read())  # type: ignore[union-attr]
            elif parts == ("PKG-INFO",):  # by which the version of an installed package is found
                text = archive.extractfile(member).read()  # type: ignore[union-attr]
                write(target / f"vllm-{version}.dist-info" / "METADATA", text)
    complete("vllm").touch()


def fetch_compiled(scratch: Path) -> None:
    """vLLM's compiled operators, and the DeepGEMM that its wheel brings; of attention nothing."""
    into = scratch / "compiled"
    pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(into), f"vllm=={VERSIONS['vllm']}")
    target = fresh(scratch / "unpacked")
    with zipfile.ZipFile(verified(into, "vllm, compiled")) as archive:
        for name in archive.namelist():
            of_vllm = name.endswith(".so") and Path(name).parent == Path("vllm")
            if of_vllm or name.startswith("vllm/third_party/deep_gemm/"):
                write(target / name, archive.read(name))
    shutil.move(target, compiled())


def fetch_sglang(scratch: Path) -> None:
    """SGLang's Python, and the CUDA sources that it looks for when it is imported, and compiles on a GPU."""
    version, into = VERSIONS["sglang"], scratch / "sglang"
    for_one = ("--python-version", "3.11", "--only-binary", ":all:", "--platform", "manylinux_2_34_x86_64")
    pip("download", "--no-deps", *for_one, "--dest", str(into), f"sglang=={version}")
    target = fresh(place("sglang"))
    with zipfile.ZipFile(verified(into, "sglang")) as archive:
        for name in archive.namelist():
            if name.endswith((".py", ".json", ".cuh", ".h", "METADATA")):
                write(target / name, archive.read(name))
    complete("sglang").touch()


def fetch_beside() -> None:
    """What the engines import."""
    target = fresh(packages())
    pip("install", "--target", str(target), *BESIDE)
    pip("install", "--target", str(target), "--no-deps", *ALONE)


def fresh(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", action="store_true", help="vLLM's machine code too, a third of a gigabyte more")
    options = parser.parse_args()
    if sys.version_info < (3, 11):
        sys.exit("expected Python 3.11 or newer, which vLLM and SGLang need")
    with tempfile.TemporaryDirectory() as scratch:
        if not (packages() / "triton").is_dir():
            fetch_beside()
        for engine, of_engine in (("vllm", fetch_vllm), ("sglang", fetch_sglang)):
            if not complete(engine).is_file():
                of_engine(Path(scratch))
        if options.compiled and not compiled().is_dir():
            fetch_compiled(Path(scratch))
    print(f"{', '.join(f'{name} {version}' for name, version in VERSIONS.items())} in {FOLDER}")


if __name__ == "__main__":
    main()
