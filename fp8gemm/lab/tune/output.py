"""What a run of tuning writes: the file of timings, and the tuned table."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from fp8gemm.errors import InputError
from fp8gemm.lab.tune import report
from fp8gemm.lab.tune.results import Results, Row, Work
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.table import Table, forget_tables, read_table, write_table


class Output:
    """The files of a run, and the rows that are done.

    Raises:
        InputError: a file is not what it should be, or is of another chip.
    """

    def __init__(self, results: Results, table_path: Path | None, heading: dict[str, Any]) -> None:
        self.results, self.rows = results, list[Row]()
        self._path = table_path
        self._table = Table(*(heading[name] for name in ("gpu", "chip", "num_sms", "date", "method")))
        if table_path is not None and os.path.exists(table_path):
            old, new = read_table(table_path), self._table
            if (old.chip, old.num_sms) != (new.chip, new.num_sms):
                raise InputError(
                    f"{table_path}: expected a table of the chip {new.chip} with {new.num_sms} SMs, got one of "
                    f"{old.chip} with {old.num_sms}"
                )
            self._table = replace(new, entries=old.entries)

    def finish(self, row: Row, work: Work[Problem]) -> Row:
        """Write a shape whose timings are complete; the row without configs that are not candidates now."""
        self.results.add(row)
        self.rows.append(row.only(work.candidates))
        if self._path is not None:
            static = work.problem.static_weights
            write_table(self._path, report.updated(self._table, self.rows, static_weights=static))
            forget_tables()
        return self.rows[-1]
