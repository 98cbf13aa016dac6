"""The commands of the labs, which `gradiometer` has when this package is installed."""
