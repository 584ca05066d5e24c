"""`tailprop eval CHECKPOINT`: evaluate a checkpoint with the metrics of its task."""

from tailprop.commands.dispatch import TaskCommand, parse_for_task


def parse(args: list[str]) -> TaskCommand:
    return parse_for_task("eval", "evaluate", args)


def run(command: TaskCommand) -> int | None:
    return command.run()
