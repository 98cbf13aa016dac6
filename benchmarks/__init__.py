"""Speed, side by side with the alternative in one run: `make bench`, or `python -m benchmarks
meter`."""
