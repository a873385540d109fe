"""python -m aggml: runs the command-line program, even where no script `aggml` is on the path."""

from aggml.cli import main

if __name__ == "__main__":
    main(prog_name="python -m aggml")
