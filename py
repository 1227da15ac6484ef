#!/bin/bash
PYTHONPATH=/tmp/t2/wt/src exec /work/w/t2/.venv/bin/python "$@"
