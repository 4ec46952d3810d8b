"""What can go wrong in the engine.

EngineError
├── InvalidParams        the caller asked for something meaningless; names the field
├── ContextOverflow      the prompt does not fit the context
├── ModelError           a model cannot be used
│   ├── ModelNotFound        nothing by that name here (and, if asked, on the hub)
│   ├── ModelFileError       a file is truncated, corrupt or not what it claims
│   ├── UnsupportedModel     a sound model of a kind that cannot run here
│   └── PullFailed           a download did not finish
├── TemplateError        the chat template refused the messages
├── BackendMissing       MLX has no backend to run on
├── MemoryShort          weights and KV would not fit this machine
├── EngineClosed         the engine has stopped
│   └── EngineUnhealthy      the backend failed too often in a row
├── QueueFull            as many requests wait as may
├── KvBudgetExceeded     a request needs more KV than the budget ever has
├── UnknownSequence      no such sequence is open
├── DrafterOutOfStep     a drafter lost its row; it is dropped, and the row decodes plainly
├── SnapshotError        a row's snapshot cannot be taken, cut, read or restored
│   ├── SnapshotCorrupt      a file is no snapshot, damaged, or of another version
│   └── SnapshotMismatch     it was made by another model or setup; names the differences
└── RowError             one sequence failed; its neighbours continue
    ├── EvalFailed           the backend raised while it computed
    ├── NonFiniteLogits      a NaN among the logits, or every token banned
    ├── RewindFailed         KV storage could not drop speculative appends
    ├── HookFailed           a mask, override or text hook raised
    └── InternalFault        our own code raised while it served the row
"""

from pathlib import Path


class EngineError(Exception):
    """Base of every error the engine raises; its message is meant for the user."""


class InvalidParams(EngineError):
    """The caller asked for something meaningless."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        """Name of the offending parameter, as the caller spells it."""
        self.problem = problem
        super().__init__(f"{field}: {problem}")


class ContextOverflow(EngineError):
    """The prompt does not fit the context."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens
        super().__init__(
            f"the prompt has {prompt_tokens} tokens; the context holds {context_tokens}, "
            "and at least one must be left for the answer"
        )


class ModelError(EngineError):
    """A model cannot be used."""


class ModelNotFound(ModelError):
    """Nothing goes by that name."""

    def __init__(self, name: str, hint: str) -> None:
        self.name = name
        self.hint = hint
        """What to type next."""
        super().__init__(f"no model named {name!r}; {hint}")


class ModelFileError(ModelError):
    """A model's file is missing, truncated, corrupt or not what it claims to be."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.problem = problem
        """What is wrong, naming the tensor or key."""
        super().__init__(f"{path}: {problem}")


class UnsupportedModel(ModelError):
    """A sound model of a kind that cannot run here."""


class PullFailed(ModelError):
    """A download did not finish; what arrived is kept and resumed."""


class TemplateError(EngineError):
    """The chat template is broken or refused the messages."""


class BackendMissing(EngineError):
    """MLX is installed without a backend to run on."""


class MemoryShort(EngineError):
    """Weights and KV would not fit this machine."""

    def __init__(self, needed_bytes: int, available_bytes: int, hint: str) -> None:
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        super().__init__(
            f"this needs about {needed_bytes / 2**30:.1f} GiB; "
            f"{available_bytes / 2**30:.1f} GiB are available ({hint})"
        )


class EngineClosed(EngineError):
    """The engine has stopped."""


class EngineUnhealthy(EngineClosed):
    """The backend failed too often in a row; nothing more is tried."""


class QueueFull(EngineError):
    """As many requests wait as may; a later try may find room."""

    def __init__(self, waiting: int, capacity: int) -> None:
        self.waiting = waiting
        self.capacity = capacity
        super().__init__(f"all slots are busy and {waiting} requests wait (at most {capacity} may)")


class KvBudgetExceeded(EngineError):
    """A request needs more KV than the budget has, even when nothing else runs."""

    def __init__(self, needed_tokens: int, budget_tokens: int) -> None:
        self.needed_tokens = needed_tokens
        self.budget_tokens = budget_tokens
        super().__init__(
            f"this prompt needs KV for {needed_tokens} tokens; "
            f"the KV budget holds {budget_tokens} in all"
        )


class UnknownSequence(EngineError):
    """No such sequence is open."""


class SnapshotError(EngineError):
    """A row's snapshot cannot be taken, cut, read or restored."""


class SnapshotCorrupt(SnapshotError):
    """A file is no snapshot, is damaged, or is of a version this program does not read."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}")


class SnapshotMismatch(SnapshotError):
    """A snapshot was made by another model, or by the same one set up otherwise."""

    def __init__(self, differences: tuple[str, ...]) -> None:
        self.differences = differences
        """Each names a property, what it is there and what it is here."""
        super().__init__(f"the snapshot is of another model or setup: {'; '.join(differences)}")


class DrafterOutOfStep(EngineError):
    """A drafter's context is not its row's: the drafter is dropped, the row decodes plainly."""


class RowError(EngineError):
    """One sequence failed; its neighbours continue."""


class EvalFailed(RowError):
    """The backend raised while it computed."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"inference backend error: {detail}")


class NonFiniteLogits(RowError):
    """No token can be drawn: the model gave NaN or infinity, or every token is banned."""


class RewindFailed(RowError):
    """KV storage could not drop speculative appends."""


class HookFailed(RowError):
    """A mask, override or text hook raised."""


class InternalFault(RowError):
    """Our own code raised while it served the row; the log has the traceback."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__(f"internal error: {type(fault).__name__}: {fault}")
