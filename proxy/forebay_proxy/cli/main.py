"""The command ``forebay``: verbs, and errors as one line that names the cause and the next step."""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from forebay_proxy.cli.options import Seams
from forebay_proxy.cli.output import error_line, silence_stdout
from forebay_proxy.core.errors import ForebayError
from forebay_proxy.core.exit_codes import ExitCode, by_signal
from forebay_proxy.core.logs import frames_of, hide_messages
from forebay_proxy.wire.protocol.version import VERSION

__all__ = ["cli", "main"]

_ALIASES = {"prefetch": "warm"}  # the word users of other caches try first
_ALSO = {"top": ["status", "--watch"]}
# In the order a person meets them: where each is below this folder, or in which package of its own; and one line about it, whole on a
# terminal of 80 columns.
_VERBS = {
    "try": ("shards.try_shards:try_shards", "Read a few of your shards directly and through Forebay."),
    "serve": ("sidecars.serve:serve", None),
    "run": ("run.run:run", "Run a command with its shards coming through Forebay."),
    "launch": ("run.join:launch", None),
    "env": ("run.env:env", "Print variables that lead stock WebDataset to the sidecar."),
    "check": ("shards.check:check", "Ask for one shard: which way it goes, what its origin says."),
    "warm": ("shards.warm:warm", None),
    "index": ("index.index:index", "Count samples ahead: equal steps, samples by number."),
    "stage": ("forebay_stage.command:stage", "Transform and re-shard a data set into another place."),
    "status": ("sidecars.status:status", "What readers wait for, room, hits, origins, last errors."),
    "ps": ("sidecars.ps:ps", "List your sidecars on this node."),
    "stop": ("sidecars.stop:stop", "End the running sidecar; what is stored stays."),
    "ls": ("shards.ls:ls", "List the shards in the cache."),
    "evict": ("shards.evict:evict", "Remove shards from the cache."),
    "verify": ("shards.verify:verify", "Compare what is stored with its checksums."),
    "plan": ("plan:plan", "Say what a cache can do for a run, before the run."),
    "doctor": ("doctor.command:doctor", "Find what stands in the way, and what to type."),
    "takeover": ("run.takeover:takeover", "Take webdataset over in a Python environment."),
    "dashboard": ("dashboard:dashboard", "The Grafana board, the alerts and their runbook."),
    "config": ("sidecars.config:config", None),
}


class _Verbs(click.Group):
    """Verbs, each imported when it is asked for: all of them take three times as long as one.

    They return exit codes; errors of the user never show a traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = _ALIASES.get(cmd_name, cmd_name)
        if name in _VERBS and name not in self.commands:
            place, short_help = _VERBS[name]
            module, _, verb = place.partition(":")
            module = module if module.startswith("forebay_") else f"forebay_proxy.cli.{module}"
            self.add_command(getattr(importlib.import_module(module), verb))
            self.commands[name].short_help = short_help
        return super().get_command(ctx, name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        args = [*_ALSO.get(args[0], args[:1]), *args[1:]]
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not (close := difflib.get_close_matches(args[0], [*_VERBS, *_ALIASES, *_ALSO], n=1)):
                raise
            raise click.UsageError(f"{error.message.rstrip('.')}; did you mean {close[0]!r}?", ctx) from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        run = super().main
        if not standalone_mode:
            return run(args, prog_name, complete_var, False, **extra)
        sys.exit(_exit_code(lambda: run(args, prog_name, complete_var, False, **extra)))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # here, before click makes a 1 of it, which means something else with us
            silence_stdout()
            return by_signal(signal.SIGPIPE)


def _exit_code(invoke: Callable[[], Any]) -> int:
    try:
        code = invoke()
    except NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return ExitCode.CANNOT_BEGIN
    except click.ClickException as error:
        return _failed(_usage_line(error))
    except (click.Abort, KeyboardInterrupt):
        return by_signal(signal.SIGINT)
    except (ForebayError, OSError) as error:  # OSError: a file or directory of the user's that is not as it should be
        return _failed(error_line(error))
    except Exception as error:
        click.echo(f"{frames_of(error)}\nforebay: a fault in Forebay itself; please report it with the lines above", err=True)
        return ExitCode.FAULT
    return code if isinstance(code, int) else ExitCode.DONE


def _failed(line: str) -> int:
    click.echo(f"forebay: {line}", err=True)
    return ExitCode.CANNOT_BEGIN


def _usage_line(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{text}; see '{context.command_path} --help'" if context else text


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 140})
@click.version_option(VERSION, prog_name="forebay")
@click.pass_context
def cli(context: click.Context) -> None:
    """Forebay keeps accelerators fed: it fetches remote training shards ahead of need into a bounded disk cache.

    \b
    Examples:
      forebay try 's3://bucket/train-{000000..000999}.tar'   what it would do for your shards, in a minute
      forebay run -- torchrun --nproc-per-node 8 train.py    a sidecar for this node, your command, unchanged
      forebay serve --cache-dir /nvme --cache-size 200GB     the sidecar alone
      eval "$(forebay env)"                                  lead stock WebDataset to it
    """
    context.obj = context.obj or Seams()


def main(seams: Seams | None = None) -> NoReturn:
    """Entry point of the installed command; a test that starts it as a program hands in its own ``seams``."""
    hide_messages()
    cli.main(prog_name="forebay", obj=seams)
    raise AssertionError("unreachable: the group exits by itself")
