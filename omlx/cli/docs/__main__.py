"""Writes the made files below the current folder, or with --check says which are stale.

Knows nothing but the two ways to be called; scripts/gen calls it in the repository's root.
"""

import sys
from pathlib import Path

import click

from omlx.cli.docs.comparison import readme_with_comparison
from omlx.cli.docs.costs import guide_with_costs
from omlx.cli.docs.files import stale, texts, write


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; fail if a file is stale.")
def main(*, check: bool) -> None:
    """Make man pages, completions, reference pages, and tables of the guide and the README."""
    root = Path.cwd()
    made = texts() | guide_with_costs(root) | readme_with_comparison(root)
    places = stale(root, made) if check else write(root, made)
    for place in places:
        click.echo(f"{'stale' if check else 'wrote'} {place}")
    if check and places:
        click.echo("hint: scripts/gen makes them again", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
