"""``forebay completion``: what a shell reads so that Tab completes verbs and flags; click makes it."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from forebay_proxy.cli.output import say
from forebay_proxy.core.exit_codes import ExitCode

__all__ = ["completion"]

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_FOREBAY_COMPLETE"  # click's, for a program of this name


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print what makes SHELL complete forebay's verbs and flags.

    \b
    Examples:
      eval "$(forebay completion bash)"                                    in ~/.bashrc; zsh: in ~/.zshrc, after compinit
      forebay completion fish > ~/.config/fish/completions/forebay.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows these three"
    say(found(context.find_root().command, {}, "forebay", _VARIABLE).source())
    return ExitCode.DONE
