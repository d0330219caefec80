"""What `scripts/results.py` draws: pure functions from one result file's content to lines of Markdown."""
