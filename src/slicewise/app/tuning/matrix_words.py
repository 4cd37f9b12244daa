"""Words that the report and the page of a tuned-at, run-at matrix share. Formats only."""

from slicewise.app.tuning.words import place_of
from slicewise.app.words import clean, counted
from slicewise.core.cost import Estimate
from slicewise.core.tuning import Matrix, MatrixCell
from slicewise.core.units import format_number
from slicewise.flows.tuning.result import MatrixResult


def matrix_subject(made: MatrixResult) -> str:
    """Return 'resnet50 on cpu, batch 1'."""
    device = clean(place_of(made.device, None))
    return f"{clean(made.model.name)} on {device}, batch {made.batch}"


def off_diagonal(matrix: Matrix) -> list[MatrixCell]:
    """Return the cells whose configuration was tuned elsewhere, in their order."""
    return [cell for cell in matrix.cells if cell.tuned_at != cell.run_at]


def shown_penalties(matrix: Matrix) -> list[MatrixCell]:
    """Return the cells off the diagonal whose penalty is beyond noise, the dearest first."""
    beyond = [cell for cell in off_diagonal(matrix) if cell.penalty.low > 1]
    return sorted(beyond, key=lambda cell: -cell.penalty.value)


def better_elsewhere(matrix: Matrix) -> list[MatrixCell]:
    """Return the cells off the diagonal that beat what was tuned there, beyond noise: where the
    diagonal is not best."""
    return [cell for cell in off_diagonal(matrix) if cell.penalty.high < 1]


def percent_more(penalty: Estimate) -> str:
    """Return '12 % (5 to 19 %)' of a penalty of 1.12.

    >>> percent_more(Estimate(1.12, 1.05, 1.19))
    '12 % (5 to 19 %)'
    """
    value, low, high = (_percent(bound) for bound in (penalty.value, penalty.low, penalty.high))
    return f"{value} % ({low} to {high} %)"


def _percent(factor: float) -> str:
    more = 100 * (factor - 1)
    shown = f"{more:.2g}" if abs(more) < 10 else f"{more:.0f}"
    return "0" if float(shown) == 0 else shown


def verdict(matrix: Matrix) -> tuple[str, str, str]:
    """Return what a matrix shows in three pieces; the middle one is the finding."""
    found = shown_penalties(matrix)
    if found:
        worst = found[0]
        told = f"costs {percent_more(worst.penalty)}"
        others = len(found) - 1
        more = f"; {counted(others, 'other pair')} beyond noise too" if others else ""
        return f"tuned at {clean(worst.tuned_at)} ", told, f" at {clean(worst.run_at)}{more}"
    cells = off_diagonal(matrix)
    if not cells:
        return "", "one share has nothing to be compared with", ""
    worst = max(cells, key=lambda cell: cell.penalty.value)
    pair = f"{clean(worst.tuned_at)} run at {clean(worst.run_at)}"
    told = f"; the largest, {pair}: {percent_more(worst.penalty)}"
    return "", "no difference beyond noise", told


def matrix_answer(made: MatrixResult) -> tuple[str, str, str]:
    """Return the answer in three pieces; the middle one is the finding."""
    head, middle, tail = verdict(made.total)
    return f"{matrix_subject(made)}: {head}", middle, f"{tail}."


def diagonal_words(matrix: Matrix) -> str:
    """Return whether the diagonal is best, as one sentence."""
    beaten = better_elsewhere(matrix)
    if not beaten:
        return "The diagonal is best or within noise everywhere."
    cell = min(beaten, key=lambda each: each.penalty.value)
    told = f"tuned at {clean(cell.tuned_at)} beats it at {clean(cell.run_at)}"
    return f"The diagonal is not best everywhere: {told}, {format_number(cell.penalty.value)}."


def how_words(made: MatrixResult) -> str:
    """Return what was measured, as one sentence."""
    return (
        f"{counted(made.candidates, 'candidate')} of {counted(len(made.workloads), 'workload')},"
        f" the same at every share ({', '.join(map(clean, made.shares))}; {made.mechanism}):"
        " chosen on one half of the samples, judged on the other."
    )


def cell_at(matrix: Matrix, tuned_at: str, run_at: str) -> MatrixCell | None:
    """Return the cell of a pair of shares; None where it could not be measured."""
    for cell in matrix.cells:
        if (cell.tuned_at, cell.run_at) == (tuned_at, run_at):
            return cell
    return None


def chosen_words(made: MatrixResult) -> str:
    """Return whether what is best depends on the share, as one sentence."""
    numbers = [
        len({cell.config for cell in matrix.cells if cell.tuned_at == cell.run_at})
        for matrix in made.workloads
    ]
    shares = counted(len(made.shares), "share")
    if len(numbers) == 1:
        return f"{counted(numbers[0], 'configuration')} chosen over {shares}."
    several = sum(number > 1 for number in numbers)
    told = f"{several} of {counted(len(numbers), 'workload')}"
    return f"What was chosen depends on the share for {told}, over {shares}."
