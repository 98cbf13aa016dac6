"""The dashboard: runs in a browser, live, on this machine."""
