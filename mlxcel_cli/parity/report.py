"""Writes what ``mlxcel parity`` found: a line a pair for people, or JSON lines."""

from dataclasses import asdict, dataclass

from mlxcel_cli.exit_codes import ExitCode
from mlxcel_cli.output import Output
from mlxcel_cli.parity.comparison import Divergence, ForcedResult, PairResult


@dataclass(frozen=True, slots=True)
class Introduction:
    """What is compared, and by which bound."""

    model: str
    dtype: str
    gap: float
    seed: int
    deterministic: bool
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


ParityEvent = Introduction | PairResult | ForcedResult


class ParityReport:
    """Writes results as they come and knows the exit status in the end."""

    def __init__(self, output: Output, *, as_json: bool, verbose: bool) -> None:
        self._output = output
        self._as_json = as_json
        self._verbose = verbose
        self._gap = 0.0
        self._counts = dict.fromkeys(("identical", "near_ties", "mismatches", "not_run"), 0)

    def take(self, event: ParityEvent) -> None:
        """Write one result, or what comes before the first."""
        match event:
            case Introduction():
                self._introduce(event)
            case PairResult():
                self._pair(event)
            case ForcedResult():
                self._forced(event)

    def close(self) -> ExitCode:
        """Write the totals; FAILED where variants disagree."""
        counts = self._counts
        if self._as_json:
            self._output.json_line({"type": "summary", **counts, "gap": self._gap})
        else:
            totals = (f"{number} {name.replace('_', ' ')}" for name, number in counts.items())
            self._output.line(f"{', '.join(totals)} (near-tie: at most {self._gap:g} logits apart)")
        return ExitCode.FAILED if counts["mismatches"] else ExitCode.OK

    def _introduce(self, event: Introduction) -> None:
        self._gap = event.gap
        for note in event.warnings:
            self._output.note(f"mlxcel: {note}")
        for note in event.notes:
            if self._verbose or (event.deterministic and note.startswith("MLXCEL_DETERMINISTIC")):
                self._output.note(f"mlxcel: {note}")
        if self._as_json:
            shown = {"model": event.model, "dtype": event.dtype, "gap": event.gap}
            extra = {"seed": event.seed, "deterministic": event.deterministic}
            self._output.json_line({"type": "parity", **shown, **extra})

    def _pair(self, result: PairResult) -> None:
        verdict = _verdict(result)
        self._counts[verdict] += 1
        if self._as_json:
            self._output.json_line({"type": "pair", "verdict": verdict, **asdict(result)})
            return
        first, second = result.variants
        place = f"prompt {result.prompt}  {result.case:<9}  {first} / {second:<9}"
        if result.not_run is not None:
            found = f"not run: {result.not_run}"
        elif result.divergence is None:
            found = f"identical, {result.tokens[0]} tokens"
        else:
            found = _difference(result.divergence, is_decided=result.is_decided)
        self._output.line(f"{place}  {found}")

    def _forced(self, result: ForcedResult) -> None:
        if result.not_run is not None:
            verdict = "not_run"
        elif result.decided:
            verdict = "mismatches"
        else:
            verdict = "near_ties" if result.differing else "identical"
        self._counts[verdict] += 1
        if self._as_json:
            self._output.json_line({"type": "forced", "verdict": verdict, **asdict(result)})
            return
        place = f"prompt {result.prompt}  {result.variant:<9}"
        if result.not_run is not None:
            self._output.line(f"{place}  not run: {result.not_run}")
            return
        found = f"{result.positions} tokens, {result.differing} differ, {result.decided} decided"
        if result.differing:
            found += f", largest gap {result.largest_gap:.3g}"
        self._output.line(f"{place}  {found}")


def _verdict(result: PairResult) -> str:
    if result.not_run is not None:
        return "not_run"
    if result.divergence is None:
        return "identical"
    return "mismatches" if result.is_decided else "near_ties"


def _difference(found: Divergence, *, is_decided: bool) -> str:
    """``token 12: 345 ' the' / 262 ' a', 0.0004 apart (top two 0.0004): near-tie``."""
    first, second = (
        "the end" if token is None else f"{token} {text!r}"
        for token, text in zip(found.ids, found.texts, strict=True)
    )
    verdict = "MISMATCH" if is_decided else "near-tie"
    apart = f"{found.gap:.2g} apart (top two {found.top_two_gap:.2g})"
    return f"token {found.index}: {first} / {second}, {apart}: {verdict}"
