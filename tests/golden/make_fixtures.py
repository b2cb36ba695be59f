#!/usr/bin/env python3
"""Write the parity fixtures of tests/data/fixtures with the real NeMo modules. See README.md here.

usage: make_fixtures.py [encoder] [...]      (no argument: all groups)
"""
import importlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
GROUPS = ["encoder", "preprocessor", "ssl", "optim", "model"]

if __name__ == "__main__":
    names = sys.argv[1:] or GROUPS
    unknown = [n for n in names if n not in GROUPS]
    if unknown:
        sys.exit(f"unknown group {unknown}; known: {GROUPS}")
    for n in names:
        importlib.import_module("gen." + n).all_fixtures()
