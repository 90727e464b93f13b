"""The entry point; see `python build.py --help`."""

import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036  (said here, before anything newer is imported)
    sys.exit("error: Python 3.11 or newer is needed, this is " + sys.version.split()[0])

try:
    from imagebuild.cli import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed\n  next:     pip install -e .")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parent))
