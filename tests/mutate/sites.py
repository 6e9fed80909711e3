"""The small faults that can be put into a module, one at a time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType

# What is not the module's behaviour, or has no test on purpose.
UNTOUCHED_FIELDS = {"annotation", "returns", "decorator_list", "bases", "type_comment"}
LOGGERS = {"log", "logger", "logging", "warnings"}
TYPING_CALLS = {"cast", "TypeVar", "ParamSpec", "NewType"}

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: the node at `field` (and `index`, in a list) of `parent` becomes `new`."""

    kind: str
    line: int
    before: str
    after: str
    parent: ast.AST
    field: str
    index: int | None
    new: ast.AST

    def __str__(self) -> str:
        return f"{self.line}: {self.kind}: {self.before} -> {self.after}"

    @contextmanager
    def put_in(self) -> Iterator[None]:
        """The tree with the fault, for as long as the context lasts."""
        held = getattr(self.parent, self.field)
        old = held if self.index is None else held[self.index]
        self._set(self.new)
        try:
            yield
        finally:
            self._set(old)

    def _set(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def compiled(tree: ast.Module, mutant: Mutant, file: str) -> CodeType:
    """The module's code with the fault in it."""
    with mutant.put_in():
        return compile(ast.fix_missing_locations(tree), file, "exec")


def mutants(tree: ast.Module) -> list[Mutant]:
    """All faults for a module, in the order of its lines."""
    found = [
        Mutant(kind, getattr(node, "lineno", 0), _short(node), _short(new), parent, field, index, new)
        for parent, field, index, node in _places(tree)
        for kind, new in _faults(parent, field, node)
    ]
    return sorted(found, key=lambda mutant: mutant.line)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:87]}..."


def _places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every node that may be changed, with where it hangs."""
    for field, value in ast.iter_fields(node):
        if field in UNTOUCHED_FIELDS or (field == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _left_alone(child):
                yield node, field, index, child
                yield from _places(child)


def _left_alone(node: ast.AST) -> bool:
    """Types, documentation, messages and the log."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in LOGGERS:
            return True
        case ast.Call(func=ast.Name(id=name)) if name in TYPING_CALLS:
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _faults(parent: ast.AST, field: str, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for make in _MAKERS:
        for kind, new in make(parent, field, node):
            yield kind, ast.fix_missing_locations(ast.copy_location(new, node))


_Faults = Iterator[tuple[str, ast.AST]]


def _operators(parent: ast.AST, field: str, node: ast.AST) -> _Faults:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for number, op in enumerate(ops):
                changed = [*ops[:number], COMPARISONS[type(op)](), *ops[number + 1 :]]
                yield "comparison", ast.Compare(left, changed, comparators)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield "arithmetic", ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in ARITHMETIC:
            yield "arithmetic", ast.AugAssign(target, ARITHMETIC[type(op)](), value)
        case ast.BoolOp(op=op, values=values):
            yield "and/or", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "negation", operand


def _conditions(parent: ast.AST, field: str, node: ast.AST) -> _Faults:
    is_test = field == "test" or (field == "ifs" and isinstance(parent, ast.comprehension)) or field == "guard"
    if is_test and isinstance(node, ast.expr) and not isinstance(node, ast.UnaryOp):
        yield "condition", ast.UnaryOp(ast.Not(), node)


def _constants(parent: ast.AST, field: str, node: ast.AST) -> _Faults:
    match node:
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(value=str() as value) if not (isinstance(parent, ast.Call) and _in_raise(parent)):
            yield "constant", ast.Constant(f"{value}x" if value else "x")
        case ast.Constant(value=bytes() as value):
            yield "constant", ast.Constant(value + b"x")


def _in_raise(call: ast.Call) -> bool:
    """Whether a call makes an error, whose words no test need know."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    return name.endswith(("Error", "Exception"))


def _statements(parent: ast.AST, field: str, node: ast.AST) -> _Faults:
    match node:
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete() | ast.Break() | ast.Continue() | ast.Raise():
            yield "statement", ast.Pass()
        case ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", ast.Pass()
        case ast.Return(value=None):
            yield "statement", ast.Pass()


def _calls(parent: ast.AST, field: str, node: ast.AST) -> _Faults:
    match node:
        case ast.Call(func=func, args=args, keywords=keywords):
            if isinstance(func, ast.Name) and func.id in SWAPPED_CALLS:
                yield "call", ast.Call(ast.Name(SWAPPED_CALLS[func.id], ast.Load()), args, keywords)
            for number in range(len(keywords)):
                yield "argument", ast.Call(func, args, keywords[:number] + keywords[number + 1 :])
            if len(args) > 1 and not keywords and not isinstance(args[-1], ast.Starred):
                yield "argument", ast.Call(func, args[:-1], keywords)


_MAKERS: tuple[Callable[[ast.AST, str, ast.AST], _Faults], ...] = (
    _operators,
    _conditions,
    _constants,
    _statements,
    _calls,
)
