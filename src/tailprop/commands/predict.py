"""`tailprop predict CHECKPOINT IMAGES`: run a checkpoint on images."""

from tailprop.commands.dispatch import TaskCommand, parse_for_task


def parse(args: list[str]) -> TaskCommand:
    return parse_for_task("predict", "predict", args)


def run(command: TaskCommand) -> int | None:
    return command.run()
