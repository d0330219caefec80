"""The faults of the cache and the JIT that must not hurt, and the tests that show it of each.

    python -m tests.cache_faults                        # all of them, each in a process of its own, four at a time
    python -m tests.cache_faults 6 21                   # some of them
    python -m tests.cache_faults --json faults.json

Where there is a Hopper GPU, `tests/gpu/test_cache_faults.py` runs the same table there, with the tests that need it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import secrets
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fp8gemm.lab.provenance import provenance
from fp8gemm.writing import write_text
from tests.gpu.faults.runner import PASSED, Outcome, run, table
from tests.gpu.faults.table import ROOT, Fault, functions

LIMIT_S = 300.0

DISK = "tests/jit/test_cache_faults_disk.py"
HEALING = "tests/jit/test_cache_faults_healing.py"
HOSTILE = "tests/jit/test_cache_faults_hostile.py"
KEYS = "tests/jit/test_cache_faults_keys.py"
KILLED = "tests/jit/test_cache_faults_killed.py"
PLACES = "tests/jit/test_cache_faults_places.py"
PROCESSES = "tests/jit/test_cache_faults_processes.py"
FORKING = "tests/unit/test_forking.py"
ON_GPU = "tests/gpu/test_driver_faults.py"
FILES = (DISK, HEALING, HOSTILE, KEYS, KILLED, PLACES, PROCESSES, FORKING, ON_GPU)
"""Whose functions ``test_fault_<number>_...`` are tests of that fault."""

JIT, UNIT, GPU = "tests/jit", "tests/unit", "tests/gpu"
BUILD, BUILD_FAULTS, BUILD_ONCE = (f"{JIT}/test_build{which}.py" for which in ("", "_faults", "_once"))
STORE, STORE_FAULTS, STORE_SAFETY = (f"{JIT}/test_store{which}.py" for which in ("", "_faults", "_safety"))
LOADER = f"{UNIT}/test_driver_kernel.py"


def _fault(number: int, what: str, *others: str) -> Fault:
    """A fault with the tests that have its number, and the node ids of other tests that belong to it."""
    own = [f"{file}::{name}" for file in FILES for name in functions(ROOT / file, number)]
    return Fault(number, what, more=(*own, *others), limit_s=LIMIT_S)


FAULTS = (
    _fault(
        1,
        "a writer killed at each step",
        f"{STORE_FAULTS}::test_a_writer_killed_at_any_step_leaves_all_or_nothing",
        f"{STORE_FAULTS}::test_what_a_killed_writer_left_is_removed_by_the_next_holder_of_its_lock",
    ),
    _fault(
        2,
        "an entry truncated anywhere",
        f"{STORE}::test_a_truncated_file_is_no_hit",
        f"{STORE}::test_a_missing_file_is_damage",
        f"{BUILD_FAULTS}::test_a_damaged_entry_is_healed_once_with_one_warning",
    ),
    _fault(3, "bits flipped in sidecar and cubin", f"{STORE}::test_a_flipped_bit_is_no_hit"),
    _fault(
        4,
        "an entry under another key",
        f"{STORE}::test_an_entry_under_another_key_is_no_hit",
        f"{BUILD_FAULTS}::test_an_entry_renamed_to_another_kernels_key_is_not_served",
    ),
    _fault(
        5,
        "a sound entry that the driver does not take",
        f"{BUILD_FAULTS}::test_a_cubin_that_the_driver_refuses_is_compiled_again",
        f"{BUILD_FAULTS}::test_refused_bytes_in_a_sealed_layer_are_passed_over",
        f"{LOADER}::test_a_refused_cubin_is_compiled_again_once_and_used",
        f"{LOADER}::test_a_cubin_refused_twice_is_an_error_that_names_driver_and_compiler",
        f"{GPU}/test_driver.py::test_bytes_that_are_no_code_for_this_gpu_are_recognised",
        f"{GPU}/test_driver.py::test_a_refused_cubin_is_healed_by_one_compilation",
    ),
    _fault(6, "32 processes, one cold key", f"{BUILD_ONCE}::test_eight_processes_compile_once"),
    _fault(7, "no locks", f"{STORE_FAULTS}::test_a_file_system_without_locks_is_used_without"),
    _fault(8, "the publishing race lost", f"{STORE}::test_the_loser_of_a_publishing_race_changes_nothing"),
    _fault(
        9,
        "ESTALE, EBUSY, EIO, EINTR on read or rename",
        f"{STORE_FAULTS}::test_a_passing_fault_is_tried_again_a_lasting_one_given_up",
    ),
    _fault(
        10,
        "the lock's holder killed or stopped",
        f"{BUILD_ONCE}::test_a_killed_lock_holder_holds_nobody_up",
        f"{STORE_FAULTS}::test_the_lock_excludes_threads_and_is_given_up_after_a_while",
    ),
    _fault(
        11,
        "disk full or over quota on write, fsync, rename",
        f"{STORE_FAULTS}::test_a_full_disk_leaves_nothing_behind",
    ),
    _fault(
        12,
        "a read-only directory with the kernels in it",
        f"{STORE_SAFETY}::test_a_sealed_layer_is_never_written_not_even_by_root",
    ),
    _fault(
        13,
        "no HOME, an unknown user, nothing writable",
        f"{STORE_FAULTS}::test_with_nothing_writable_it_is_said_once_and_nothing_is_made",
        f"{STORE_FAULTS}::test_a_layer_that_is_not_mounted_is_not_made",
        f"{BUILD_FAULTS}::test_a_cache_that_cannot_be_written_leaves_memory",
        f"{UNIT}/test_import.py::test_import_needs_neither_a_home_nor_a_cache",
        f"{UNIT}/test_settings.py::test_cache_directories",
    ),
    _fault(
        14,
        "a directory of somebody else, writable by others, a symlink",
        f"{STORE_SAFETY}::test_a_directory_that_others_can_write_is_refused_unless_trusted",
        f"{STORE_SAFETY}::test_a_directory_of_somebody_else_is_refused_unless_trusted",
        f"{STORE_SAFETY}::test_a_layer_sealed_by_root_serves_another_user",
        f"{STORE_SAFETY}::test_a_symlink_to_a_directory_is_refused_unless_trusted",
        f"{JIT}/test_seal.py::test_what_root_has_sealed_serves_and_verifies_for_another_user",
    ),
    _fault(
        15,
        "an entry that is a symlink, a FIFO or a device",
        f"{STORE_SAFETY}::test_an_entry_that_is_no_directory_is_refused_without_waiting",
        f"{STORE_SAFETY}::test_a_file_that_is_no_regular_file_is_refused_without_waiting",
    ),
    _fault(
        16,
        "umask 000 and 077, and the modes of a seal",
        f"{STORE_SAFETY}::test_what_we_make_is_private_whatever_the_umask",
        f"{JIT}/test_seal.py::test_a_sealed_directory_is_closed_and_has_a_manifest",
    ),
    _fault(
        17,
        "paths with spaces, ;, $() and unicode",
        f"{STORE}::test_a_cache_can_be_moved",
        f"{BUILD}::test_a_moved_cache_and_moved_headers_still_hit",
        f"{JIT}/test_compiler.py::test_the_cubin_does_not_depend_on_paths",
    ),
    _fault(
        18,
        "a header edited to the same size and time",
        f"{JIT}/test_fingerprint.py::test_a_header_edited_to_the_same_size_and_time_makes_a_new_key",
        f"{BUILD}::test_an_edited_header_is_noticed_even_in_a_running_process",
    ),
    _fault(
        19,
        "what makes a key of its own, and what does not",
        f"{JIT}/test_fingerprint.py::test_everything_else_that_matters_makes_a_key_of_its_own",
        f"{BUILD}::test_another_nvrtc_or_none_at_all_still_hits",
    ),
    _fault(
        20,
        "the clock moved by ten years",
        f"{JIT}/test_fingerprint.py::test_the_key_depends_on_no_time_stamp",
        f"{JIT}/test_inventory.py::test_a_wrong_clock_breaks_nothing",
    ),
    _fault(
        21,
        "eviction while another process loads",
        f"{STORE}::test_foreign_files_are_left_alone",
        f"{JIT}/test_eviction.py::test_what_is_removed_is_gone_and_the_rest_untouched",
        f"{JIT}/test_eviction.py::test_a_foreign_file_that_comes_after_the_look_is_left",
        f"{JIT}/test_eviction.py::test_a_loader_gets_all_of_a_kernel_or_none_while_it_is_removed_and_written",
    ),
    _fault(
        22,
        "32 threads' first call; a fork after CUDA was started",
        f"{BUILD_ONCE}::test_thirty_two_threads_compile_once",
        f"{BUILD_ONCE}::test_a_forked_child_builds_although_its_parent_was_compiling",
        f"{LOADER}::test_32_threads_asking_together_load_one_library",
    ),
    _fault(
        23,
        "another path, another user, another machine",
        f"{BUILD}::test_a_moved_cache_and_moved_headers_still_hit",
        f"{JIT}/test_fingerprint.py::test_the_key_does_not_depend_on_where_the_headers_are",
    ),
    _fault(
        24,
        "NVRTC missing, broken, or refusing the source",
        f"{JIT}/test_compiler.py::test_missing_nvrtc_says_what_to_install",
        f"{JIT}/test_compiler.py::test_a_refused_source_is_kept_and_shown_with_log_and_options",
        f"{BUILD_FAULTS}::test_a_source_that_does_not_compile_leaves_no_entry_on_disk",
        f"{BUILD_ONCE}::test_threads_that_wait_for_a_failing_compile_all_get_its_error",
    ),
    _fault(
        25,
        "a cold key that may not be compiled, also in a capture",
        f"{BUILD}::test_the_policy_error_names_the_kernel_its_key_and_the_settings",
        f"{UNIT}/test_demand.py::test_the_command_that_a_miss_names_makes_it_ready",
        f"{UNIT}/test_nearest.py::test_in_a_capture_what_is_ready_must_be_loaded",
        f"{LOADER}::test_nothing_is_built_or_loaded_under_a_capture",
        f"{GPU}/test_configs.py::test_a_missing_kernel_under_each_policy",
        f"{GPU}/test_configs.py::test_a_capture_takes_the_nearest_loaded_kernel_or_says_why_not",
        f"{GPU}/test_driver.py::test_a_kernel_that_is_not_loaded_is_refused_under_a_capture_which_goes_on_unharmed",
    ),
)


def needs_gpu(fault: Fault) -> bool:
    """Whether one of its tests runs on a GPU alone."""
    return any(node.startswith(f"{GPU}/") for node in fault.nodes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults, print a line for each and write the result file; 1 if one of them hurts."""
    parser = argparse.ArgumentParser(prog="python -m tests.cache_faults", description="Faults of the kernel cache.")
    parser.add_argument("numbers", type=int, nargs="*", help="which faults; all of them by default")
    parser.add_argument("--jobs", type=int, default=4, help="how many at a time (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result of all of them there")
    options = parser.parse_args(arguments)
    chosen = [fault for fault in FAULTS if fault.number in options.numbers or not options.numbers]
    if options.json and len(chosen) < len(FAULTS):
        parser.error("--json is for all faults together")
    seed = secrets.randbits(32)
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(lambda fault: run(fault, seed=seed), chosen))
    print(table(outcomes))
    failed = [each for each in outcomes if not each.result.startswith(PASSED)]
    for each in failed:
        print(f"\nfault {each.fault.number}, {each.fault.what}: {each.result}\n{each.detail}", file=sys.stderr)
    if options.json:
        today = datetime.date.today().isoformat()
        report = {"date": today, "machine": "no GPU", **provenance(), "faults": _rows(outcomes)}
        write_text(options.json, json.dumps(report, indent=1) + "\n")
    return int(bool(failed))


def _rows(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    return [each.row for each in outcomes]


if __name__ == "__main__":
    sys.exit(main())
