"""Compiles the five kernels of docs/learn-hopper.md, and on a Hopper GPU runs them and checks what they compute.

    python examples/learn_hopper/run.py

Runs from a checkout. Without a Hopper GPU it compiles, shows what the compiler made of each kernel, and says why none
runs. Exit code 0: all is well. 1: a result is wrong.
"""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from examples.learn_hopper.tasks import TASKS, Map, Task  # noqa: E402
from fp8gemm.driver.arguments import Arguments  # noqa: E402
from fp8gemm.driver.device import HOPPER, DeviceStatus, device_info, diagnose, probe  # noqa: E402
from fp8gemm.driver.launch import BoundLaunch, LaunchConfig  # noqa: E402
from fp8gemm.driver.library import ensure_context, get_function, load_library, set_max_dynamic_shared  # noqa: E402
from fp8gemm.driver.tensor_map import MAP_ALIGNMENT, MAP_BYTES, DataType, encode_2d  # noqa: E402
from fp8gemm.jit.compiler import CompileResult, compile_options, compile_source  # noqa: E402
from fp8gemm.terminal.table import Column, Table, fitted  # noqa: E402

HERE = Path(__file__).resolve().parent
_LOCAL_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)
_DTYPES: dict[int, DataType] = {1: "uint8", 2: "bfloat16", 4: "float32"}
_INSTRUCTION_BYTES = 16
_LAUNCHES = 20


@dataclass(frozen=True)
class Step:
    """One of the kernels.

    Attributes:
        file: its file without the suffix: a number, and the name of its entry.
        threads: of a CTA.
        shared: the type that its shared memory is taken for.
        shared_bytes: the size of that type.
        walks: whether a CTA walks over tiles, so that there need not be more of them than SMs.
    """

    file: str
    threads: int
    shared: str
    shared_bytes: int
    walks: bool = False

    @property
    def entry(self) -> str:
        return self.file.partition("_")[2]


STEPS = (
    Step("1_tma_ring", 160, "Shared", 33 * 1024),
    Step("2_wgmma", 128, "Shared", 25 * 1024),
    Step("3_promotion", 160, "Shared", 97 * 1024),
    Step("4_warp_roles", 384, "Stages", 131 * 1024),
    Step("5_persistent", 384, "Shared", 163 * 1024, walks=True),
)


def source_of(step: Step) -> str:
    """The kernel's text with this folder's headers in their places, and a check of what a launch assumes."""
    check = f'static_assert(sizeof({step.shared}) == {step.shared_bytes}, "run.py launches with another size");'
    return f"{_read(f'{step.file}.cu')}\n{check}\n"


def _read(name: str) -> str:
    return _LOCAL_INCLUDE.sub(lambda include: _read(include[1]), (HERE / name).read_text())


def compile_step(step: Step) -> CompileResult:
    """Compile a kernel; neither a GPU nor a driver is needed.

    Raises:
        CompileError: NVRTC is missing, or refuses the source.
    """
    options = compile_options("sm_90a")
    return compile_source(
        source_of(step), label=step.file, options=options, arch="sm_90a", include_dir=ROOT / "include"
    )


def instruction_count(cubin: bytes, entry: str) -> int:
    """Instructions of a kernel, the padding behind the last one included: the size of its section of the cubin."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    # name, type, flags, address, offset, size
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    for name, *_, length in sections:
        start = sections[names][4] + name
        if cubin[start : cubin.index(0, start)] == f".text.{entry}".encode():
            return int(length) // _INSTRUCTION_BYTES
    raise ValueError(f"the cubin has no kernel {entry}")


def encode_map(destination: int, box: Map, encode: Callable[..., None] = encode_2d) -> None:
    """Write the tensor map of a matrix for boxes of it to host memory."""
    rows, cols = box.matrix.shape
    encode(
        destination,
        address=box.matrix.data_ptr(),
        dtype=_DTYPES[box.matrix.element_size()],
        inner=cols,
        outer=rows,
        outer_stride_bytes=box.matrix.stride(0) * box.matrix.element_size(),
        box_inner=box.cols,
        box_outer=box.rows,
        swizzle="128B" if box.swizzled else "none",
    )


@cache
def _layout(maps: int, pointers: int, numbers: int) -> type[ctypes.Structure]:
    """``Params`` of the kernels: maps, then pointers, then numbers, up to a multiple of a map's alignment."""
    padding = -(MAP_BYTES * maps + 8 * pointers + 4 * numbers) % MAP_ALIGNMENT
    fields = [
        ("maps", ctypes.c_char * (MAP_BYTES * maps)),
        ("pointers", ctypes.c_void_p * pointers),
        ("numbers", ctypes.c_uint32 * numbers),
        ("padding", ctypes.c_char * padding),
    ]
    return type("Params", (ctypes.Structure,), {"_fields_": fields})


def make_arguments(task: Task, encode: Callable[..., None] = encode_2d) -> Arguments[Any]:
    """What a kernel is called with for a task; it holds addresses, and none of the task's tensors."""
    arguments: Arguments[Any] = Arguments(_layout(len(task.maps), len(task.pointers), len(task.numbers)))
    for index, box in enumerate(task.maps):
        encode_map(ctypes.addressof(arguments.params) + index * MAP_BYTES, box, encode)
    arguments.params.pointers[:] = [tensor.data_ptr() for tensor in task.pointers]
    arguments.params.numbers[:] = task.numbers
    return arguments


def make_launch(step: Step, cubin: bytes, task: Task, device_index: int) -> BoundLaunch:
    """The launch of a kernel for a task whose tensors are on a GPU, in torch's stream there.

    Raises:
        DriverError: the driver refuses the cubin, its shared memory or a tensor map.
    """
    ensure_context(device_index)
    function = get_function(load_library(cubin), step.entry, device_index)
    set_max_dynamic_shared(function, step.shared_bytes, device_index)
    config = LaunchConfig(
        function=function,
        device_index=device_index,
        grid_x=min(task.tiles, device_info(device_index).num_sms) if step.walks else task.tiles,
        threads=step.threads,
        dynamic_shared_bytes=step.shared_bytes,
    )
    return BoundLaunch(config, make_arguments(task), torch.cuda.current_stream(device_index).cuda_stream)


def time_us(launch: BoundLaunch) -> float:
    """Microseconds of one launch among several."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(_LAUNCHES):
        launch()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / _LAUNCHES


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(fitted([Column(title, left=True) for title in header], rows), gap="  ")
    print("\n".join([table.header(), *(table.line(*row) for row in rows)]))


def run_all(device_index: int) -> bool:
    """Run and check every kernel at a size where it is busy, print a table, and say whether all are right."""
    device = torch.device("cuda", device_index)
    torch.cuda.set_device(device)
    rows, all_right = [], True
    for step in STEPS:
        task = TASKS[step.entry](4096, 4096, 128 if step.entry == "wgmma" else 1024, device=device)
        launch = make_launch(step, compile_step(step).cubin, task, device_index)
        launch()
        torch.cuda.synchronize(device)
        error, limit = task.error()
        all_right &= error <= limit
        verdict = "right" if error <= limit else "WRONG"
        rows.append((step.file, task.what, f"{error:.1e}", f"{limit:.1e}", f"{time_us(launch):.1f}", verdict))
    print_table(("kernel", "computed", "error", "limit", "us", ""), rows)
    return all_right


def main() -> int:
    rows = []
    for step in STEPS:
        result = compile_step(step)
        used = result.resources
        spilled = used.spill_store_bytes + used.spill_load_bytes
        figures = used.registers, spilled, step.shared_bytes, instruction_count(result.cubin, step.entry)
        rows.append((step.file, *map(str, figures), f"{result.seconds:.2f}"))
    print_table(("kernel", "registers", "spilled bytes", "shared bytes", "instructions", "seconds to compile"), rows)
    print()
    diagnosis = diagnose()
    print(diagnosis.message)
    if diagnosis.status is not DeviceStatus.READY:
        print("Running them needs Hopper; that they compile is all that can be shown here.")
        return 0
    index = next(index for index, gpu in enumerate(probe().gpus) if gpu.capability == HOPPER)
    return 0 if run_all(index) else 1


if __name__ == "__main__":
    sys.exit(main())
