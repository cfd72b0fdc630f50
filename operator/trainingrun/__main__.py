"""`python -m trainingrun`: the command line, where its script is not on PATH."""

from .cli.main import app

app(prog_name="trainingrun")
