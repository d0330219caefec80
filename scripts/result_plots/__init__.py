"""What `scripts/results.py` draws with matplotlib: pictures of one result file's content."""
