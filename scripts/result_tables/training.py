"""What FP8 products cost a small model that is trained with them, from `examples/training_step.py --json`."""

from __future__ import annotations

from result_tables.markdown import Result, table, whole

_EXACT = "float32"
_ROWS = 6


def training(result: Result) -> list[str]:
    """Losses by step, and of texts that the model did not see."""
    losses, steps = result["losses"], result["steps"]
    shown = sorted({*range(0, steps, -(-steps // _ROWS)), steps - 1})
    return [
        f"{whole(result['parameters'])} parameters, {steps} steps of {result['tokens']} letters on "
        f"{result['device']}, {result['date']}, torch {result['torch']}, commit {result['commit']}. It says what is "
        "learnt, and nothing of speed.",
        "",
        "Loss of a step, and after the last of texts that the model did not see, in nats a letter:",
        "",
        *table(
            ["step", *losses],
            [
                *([str(step), *(f"{of_form[step]:.4f}" for of_form in losses.values())] for step in shown),
                ["unseen", *(f"{loss:.4f}" for loss in result["unseen"].values())],
            ],
        ),
        "",
        "Of these texts: " + ", ".join(_beside(form, result["unseen"]) for form in losses if form != _EXACT) + ".",
    ]


def _beside(form: str, unseen: dict[str, float]) -> str:
    return f"{form} {100 * (unseen[form] / unseen[_EXACT] - 1):+.2f} % beside {_EXACT}"
