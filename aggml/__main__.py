"""python -m aggml: the program, also where no script of that name is on the path."""

from aggml.cli import main

if __name__ == "__main__":
    main(prog_name="python -m aggml")
