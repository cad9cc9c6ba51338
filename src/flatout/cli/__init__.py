"""The command line: arguments in, text out.

`commands/` has one file per command, loaded on use; `flows/` the commands that show
a plan, ask and act; `render/` is the only place that uses rich.

To add a command
----------------

1. `cli/commands/<name>.py` with `command`, which has `--json` (`cli/options.py: json_document`).
   Import at the top only click and light modules of `cli`: tests/unit/test_cli_help.py checks that
   --help loads nothing heavy, msgspec included. A Choice is written out; a test compares it.
2. `cli/main.py: COMMANDS`: a line (name, group in --help, what it does, with a full stop at the
   end).
3. What it does goes into the `api.py` of the package of its subject. The command line imports none
   of `engine`, `experiments`, `system` (but `system.changes.api`) and `tune`; only `schema` and
   `errors` freely. If it shows, asks and acts: `cli/flows/`.
4. tests/cases/cli/options.txt: the command and each option. docs: a section `flatout <name>` that
   names all of them.
"""
