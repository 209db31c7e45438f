"""What every result can do in Python: print itself, show itself in a notebook, become a table."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar

from normscope.core.errors import MissingDependencyError
from normscope.core.lazy import late
from normscope.core.value import Value


class Shown:
    """A result with ``print(result)``, ``result.summary()``, a view in notebooks and ``result.to_frame()``.

    A class names the function that lays it out, and the attribute that holds its rows.
    """

    #: Module and name of the function from the result to sections of a report.
    _layout: ClassVar[tuple[str, str]]
    #: The attribute with the rows of :meth:`to_frame`.
    _rows: ClassVar[str]

    def summary(self) -> str:
        """Return the result as plain text, the most important first."""
        return str(late("normscope.report.table", "plain_text")(self.sections()))

    def __repr__(self) -> str:
        """Return one line: the class, and what it is about."""
        return f"<{type(self).__name__}: {self.sections()[0].title}>"

    def __str__(self) -> str:
        """Return :meth:`summary`."""
        return self.summary()

    def _repr_html_(self) -> str:
        """Return the result as a notebook shows it."""
        return str(late("normscope.report.notebook", "notebook_html")(self.sections()))

    def sections(self, **layout: Any) -> Any:
        """Return the sections of the report; keyword arguments are those of the function that lays it out."""
        return late(*self._layout)(self, **layout)

    def to_frame(self) -> Any:
        """Return the rows of the result as a pandas data frame.

        A number that says what it guarantees becomes two columns: ``upper`` and ``upper_kind``.

        Raises:
            MissingDependencyError: if pandas is not installed.
        """
        return frame(getattr(self, self._rows))


def frame(rows: Iterable[Any]) -> Any:
    """Return rows as a pandas data frame.

    Args:
        rows: dataclasses, mappings, or a mapping from names to values.
    """
    try:
        import pandas
    except ImportError:
        raise MissingDependencyError("to_frame() needs pandas. Install it with: pip install pandas") from None
    if isinstance(rows, Mapping):
        rows = [{"name": name, "value": value} for name, value in rows.items()]
    return pandas.DataFrame([cells(row) for row in rows])


def cells(row: Any) -> dict[str, Any]:
    """Return a row as plain cells by column: values as floats with their kind, nested data left out.

    >>> from normscope.core.value import Kind
    >>> cells({"name": "fc", "upper": Value.of(1.0, Kind.CERTIFIED), "details": {}})
    {'name': 'fc', 'upper': 1.0, 'upper_kind': 'certified'}
    """
    items = {f.name: getattr(row, f.name) for f in fields(row)} if is_dataclass(row) else dict(row)
    found: dict[str, Any] = {}
    for name, item in items.items():
        parts = item if isinstance(item, tuple) else (item,)
        if isinstance(item, Value):
            found |= {name: item.value, f"{name}_kind": "attained" if item.kind.value == "lower" else item.kind.value}
        elif isinstance(item, Enum):
            found[name] = item.value
        elif item is None or all(isinstance(x, int | float | str) for x in parts):
            found[name] = item
    return found
