"""`python -m gradiometer` is the command `gradiometer`."""

from gradiometer.cli.main import main

main()
