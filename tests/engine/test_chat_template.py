"""Chat templates render as transformers does it, and stop where they would go on for ever or fill the memory."""

from __future__ import annotations

import time
from typing import Any

import pytest

from engine import chat_template
from engine.chat_template import ChatTemplate, ChatTemplateError
from engine.loading.resolve import resolve_model

CHAT = [
    {"role": "system", "content": "Be  brief."},
    {"role": "user", "content": "<think>a</think> b\nc"},
    {"role": "assistant", "content": "d"},
    {"role": "user", "content": "\u00e9\N{SNOWMAN}"},
]
# What templates of known models do, each once.
REAL = {
    "namespace": "{% set ns = namespace(seen=0, last='') %}{% for m in messages[::-1] %}"
    "{% set ns.seen = ns.seen + 1 %}{% if m.role == 'user' and not ns.last %}{% set ns.last = m.content %}{% endif %}"
    "{% endfor %}{{ ns.seen }}{{ ns.last }}",
    "macro": "{% macro turn(m, end='!') %}{{ '<' ~ m['role'] ~ '>' }}{{ m['content'] | trim }}{{ end }}{% endmacro %}"
    "{% for m in messages %}{{ turn(m) if loop.first else turn(m, end=loop.index0) }}{% endfor %}",
    "texts": "{% set text = messages[1].content %}{{ text.split('</think>')[-1].lstrip('\\n') }}"
    "{{ text.replace('a', 'bb') | upper }}{{ text | replace('b', '') }}{{ text[3:-2] }}{{ '%s-%03d' | format('x', 7) }}"
    "{{ '{:>5}'.format('y') }}{{ '-' * 5 }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ 'ab' * 2 + 'c' }}{{ text | length }}",
    "lists": "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') "
    "| list | length }}{{ messages[0] | tojson(indent=2) }}{{ ('a', 'b') + ('c',) }}{{ [1, 2] | join('-') }}"
    "{% for key, value in messages[0] | items %}{{ key }}{% endfor %}{{ dict(a=1) | tojson }}"
    "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }}{% endfor %}{% endfor %}",
    "blocks": "{% set text %}{% for m in messages if m.role != 'system' %}{{ m.content }}{% else %}none{% endfor %}"
    "{% endset %}{{ text }}{% filter upper %}{{ text }}{% endfilter %}",
    "loops": "{% for m in messages %}{% if loop.index is divisibleby 2 %}{% continue %}{% endif %}{{ loop.index }}"
    "{{ loop.length }}{{ loop.previtem.role if loop.previtem is defined }}{% if loop.last %}{% break %}{% endif %}"
    "{% endfor %}",
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(resolve_model("tiny").folder)


@pytest.mark.parametrize("name", REAL)
def test_what_templates_do_is_as_in_transformers(name: str, theirs: Any) -> None:
    expected = theirs.apply_chat_template(CHAT, tokenize=False, chat_template=REAL[name])
    assert expected
    assert ChatTemplate(REAL[name]).render({"messages": CHAT}) == expected


ENDLESS = {
    "two loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that put out": "{% for i in range(99999) %}{% for j in range(99999) %}{{ j }}{% endfor %}{% endfor %}",
    "loops of filters": "{% for i in range(99999) %}{{ range(99999) | sum | string | length }}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a loop in itself": "{% for i in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}"
    "{% endfor %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_would_go_on_for_ever_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MOST_SECONDS", 0.05)
    with pytest.raises(ChatTemplateError, match=r"was stopped: it computed for more than 0\.05 seconds"):
        ChatTemplate(ENDLESS[name]).render({"messages": CHAT})


LARGE = {
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a power in steps": "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "times": "{{ 'a' * 10 ** 12 }}",
    "times from the left": "{{ 10 ** 12 * 'a' }}",
    "a list": "{{ [0] * 10 ** 12 }}",
    "doubling": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "adding": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling a list": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}",
    "blocks": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "output": "{% set x = 'a' * 9999999 %}{% for i in range(99) %}{{ x }}{% endfor %}",
    "a width": "{{ '%999999999d' % 1 }}",
    "a width given": "{{ '%*d' % (999999999, 1) }}",
    "a filter's width": "{{ '%999999999d' | format(1) }}",
    "a format's width": "{{ '{:999999999}'.format(1) }}",
    "a centre": "{{ 'a'.center(999999999) }}",
    "a filter's centre": "{{ 'a' | center(999999999) }}",
    "zeros": "{{ 'a'.zfill(999999999) }}",
    "replacing": "{% set x = 'a' * 999999 %}{{ x.replace('a', x) }}",
    "a filter's replacing": "{% set x = 'a' * 999999 %}{{ x | replace('a', x) }}",
    "joining": "{% set x = 'a' * 999999 %}{{ x.join(x) }}",
    "a filter's joining": "{% set x = 'a' * 999999 %}{{ x | join(x) }}",
    "joining a generator": "{% set x = 'a' * 9999 %}{{ range(99999) | map('string') | join(x) }}",
    "a range": "{{ range(10 ** 9) | list }}",
    "nonsense": "{{ lipsum(n=10 ** 9) }}",
    "a time": "{{ strftime_now('%999999999d') }}",
    "a batch": "{{ [1] | batch(10 ** 9, 0) | list }}",
}


@pytest.mark.parametrize("name", LARGE)
def test_what_would_fill_the_memory_is_stopped(name: str) -> None:
    began = time.thread_time()
    with pytest.raises(ChatTemplateError):
        ChatTemplate(LARGE[name]).render({"messages": CHAT})
    assert time.thread_time() - began < chat_template.MOST_SECONDS + 1


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ cycler.__init__.__globals__.os.popen('true') }}",
        "{{ ''['__class__'] }}{{ ''|attr('__class__')|attr('__mro__') }}{{ (''|attr('__class__')).x.y }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
    ],
)
def test_nothing_leads_out_of_the_sandbox(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render({"messages": CHAT})
