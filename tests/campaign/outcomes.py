"""What an attack may lead to: the right answer, or a refusal in one line. Everything else is wrong."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Outcome", "Tally", "Verdict", "judge_error", "judge_exit"]


class Outcome(Enum):
    """The columns of the table."""

    RIGHT = "right answer"
    REFUSED = "refused in one line"
    WRONG = "wrong"


@dataclass(frozen=True)
class Verdict:
    """The outcome of one try, and for a wrong one what happened."""

    outcome: Outcome
    detail: str = ""


RIGHT, REFUSED = Verdict(Outcome.RIGHT), Verdict(Outcome.REFUSED)


def wrong(detail: str) -> Verdict:
    return Verdict(Outcome.WRONG, detail)


def judge_exit(code: int, err: str, is_right: bool, what: str) -> Verdict:
    """The verdict on a command: code 0 needs the right answer, code 2 one line on standard error.

    Further lines may say what was set aside, skipped or replaced; they start with a word, and none is a traceback.
    """
    if "Traceback" in err or code not in (0, 2) or "\x1b" in err:
        return wrong(f"{what}: exit {code}: {err[-600:]}")
    if code == 0:
        return RIGHT if is_right else wrong(f"{what}: exit 0 with another answer: {err[-300:]}")
    refusals = [line for line in err.splitlines() if line.startswith("tailprop: ")]
    return REFUSED if len(refusals) == 1 else wrong(f"{what}: {len(refusals)} lines: {err[-600:]}")


def judge_error(error: BaseException, what: str, named: str = "") -> Verdict:
    """The verdict on an exception: the command prints ValueError and OSError in one line; it should have the file's name."""
    if not isinstance(error, ValueError | OSError):
        return wrong(f"{what}: {type(error).__name__}: {str(error)[:300]}")
    text = str(error)
    if named and named not in text:
        return wrong(f"{what}: the message has no file name: {text[:300]}")
    return REFUSED


@dataclass
class Tally:
    """The row of an attack."""

    name: str
    rounds: int = 0
    seconds: float = 0.0
    counts: Counter[Outcome] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    def add(self, verdict: Verdict, where: str) -> None:
        self.counts[verdict.outcome] += 1
        if verdict.outcome is Outcome.WRONG:
            self.details.append(f"{where}: {verdict.detail}")

    def cells(self) -> list[str]:
        return [self.name, str(self.counts.total()), *(str(self.counts[outcome]) for outcome in Outcome)]
