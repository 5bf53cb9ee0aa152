"""A model's chat template: a program by whoever made the model, in Jinja's sandbox and within bounds.

Without them a template of two loops, one in the other, would hold the server up for as long as it likes. Each turn of a
loop, each call and each filter looks at the time; texts and numbers are bounded where they could grow at one blow.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.visitor

MOST_SECONDS = 2.0  # of this thread's computing, for one chat
MOST_TEXT = 64 << 20  # characters of a chat, and of any text on the way
MOST_ITEMS = 1_000_000  # of a list, and of what a call is given as a number
MOST_BITS = 4096  # of a whole number
_WIDE = re.compile(r"\d{6}|\*")  # in a format: a width that fills memory
_deadline: ContextVar[float] = ContextVar("deadline")


class ChatTemplateError(ValueError):
    """The chat template is missing, refused these messages or went past its bounds."""


class ChatTemplate:
    """Raises ChatTemplateError, from `render`."""

    def __init__(self, source: str) -> None:
        self._source = source

    def render(self, variables: Mapping[str, Any]) -> str:
        token = _deadline.set(time.thread_time() + MOST_SECONDS)
        try:
            return _Sandbox.concat(self._template.generate(**variables))
        except ChatTemplateError:
            raise
        except Exception as error:  # a template is a program: it can fail in any way
            raise ChatTemplateError(f"the model's chat template refused the messages: {error}") from error
        finally:
            _deadline.reset(token)

    @functools.cached_property
    def _template(self) -> jinja2.Template:
        return _Sandbox().from_string(self._source)


def _stop(why: str) -> NoReturn:
    raise ChatTemplateError(f"the model's chat template was stopped: {why}")


def _tick() -> None:
    if time.thread_time() > _deadline.get():
        _stop(f"it computed for more than {MOST_SECONDS:g} seconds")


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) > MOST_TEXT:
            _stop(f"it made a text of more than {MOST_TEXT:,} characters")
    elif isinstance(value, int):
        if value.bit_length() > MOST_BITS:
            _stop(f"it made a number of more than {MOST_BITS:,} bits")
    elif isinstance(value, list | tuple | dict) and len(value) > MOST_ITEMS:
        _stop(f"it made a list of more than {MOST_ITEMS:,} items")
    return value


def _check_arguments(arguments: Iterable[Any]) -> None:
    """What a call is given: numbers are widths and counts."""
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MOST_ITEMS:
            _stop(f"it passed a number above {MOST_ITEMS:,} to a function")


def _check_product(size: int, times: int) -> None:
    if size * times > MOST_TEXT:
        _stop(f"it made a text of more than {MOST_TEXT:,} characters")


def _check_replacing(text: str, old: Any = "", new: Any = "", *_: Any) -> None:
    _check_product(len(str(new)), text.count(str(old)))


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _to_json
        self.filters = {name: _bounded_filter(name, found) for name, found in self.filters.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """How Jinja joins what a template, a macro or a block puts out."""
        kept, size = [], 0
        for piece in pieces:
            size += len(piece)
            _check_product(size, 1)
            kept.append(piece)
        return "".join(kept)

    def tick(self) -> None:
        """Called in every turn of a loop: what is called looks at the time."""

    def joined(self, *parts: Any) -> str:
        """`a ~ b`"""
        return self.concat(map(str, parts))

    def call(self, context: jinja2.runtime.Context, called: Any, *args: Any, **kwargs: Any) -> Any:
        _tick()
        if called != self.globals["range"]:  # which has a bound of its own
            _check_arguments((*args, *kwargs.values()))
        text, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(text, str):
            if name == "replace":
                _check_replacing(text, *args)
            elif name == "join" and args:
                _check_product(len(text), _length(args[0]))
        return _bounded(super().call(context, called, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`'...'.format`, which the sandbox makes its own."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE.search(value.__self__):
            _stop("it made a text of a width that fills memory")
        return wrapped

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MOST_BITS:
                _stop(f"it made a number of more than {MOST_BITS:,} bits")
        elif operator == "*":
            for many, count in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(count, int):
                    _check_product(len(many), count)
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            _stop("it made a text of a width that fills memory")
        return _bounded(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree: jinja2.nodes.Template = _Bounding().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree


class _Bounding(jinja2.visitor.NodeTransformer):
    """Makes calls of what Jinja would do without asking."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, jinja2.nodes.ExprStmt(_call("tick", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)


def _call(name: str, arguments: list[jinja2.nodes.Expr], lineno: int) -> jinja2.nodes.Call:
    attribute = jinja2.nodes.EnvironmentAttribute(name, lineno=lineno)
    return jinja2.nodes.Call(attribute, arguments, [], None, None, lineno=lineno)


def _bounded_filter(name: str, found: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(found)  # Jinja's marks of what it is to be passed, too
    def filtered(*args: Any, **kwargs: Any) -> Any:
        _tick()
        given = [argument for argument in args if not isinstance(argument, jinja2.runtime.Context)]
        _check_arguments((*given[1:], *kwargs.values()))
        texts = [argument for argument in (*given, *kwargs.values()) if isinstance(argument, str)]
        if name == "replace" and len(texts) > 2:
            _check_replacing(*texts[:3])
        elif name == "join" and texts:
            _check_product(len(texts[-1]), max(map(_length, given)))
        elif name == "format" and texts and _WIDE.search(texts[0]):
            _stop("it made a text of a width that fills memory")
        return _bounded(found(*args, **kwargs))

    return filtered


def _length(value: Any) -> int:
    """Of what is joined; a generator's is as long as a list may be."""
    return len(value) if hasattr(value, "__len__") else MOST_ITEMS if hasattr(value, "__iter__") else 1


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; for serving it is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes HTML, which a prompt must not have."""
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, indent=None if indent is None else min(int(indent), 16), **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > 1000 or re.search(r"\d{3}", form):
        _stop("it made a text of a width that fills memory")
    return datetime.now().strftime(form)
