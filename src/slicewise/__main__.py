"""The command `slicewise`, also as `python -m slicewise`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C is quiet from the first import on."""
    try:
        from slicewise.app.cli import main as run_command_line
    except KeyboardInterrupt:
        sys.exit(130)
    run_command_line()


if __name__ == "__main__":
    main()
