"""Chat templates are bounded: hostile ones end in ModelError, and valid ones say what they say without bounds."""

import json
import threading
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mha_text.models.chat import ChatTemplate
from mha_text.models.files import ModelError

PAIRS = [("which animal barks?", "a dog <think>does</think> bark\n\nand runs"), ("", ""), ("q " * 50_000, "line\n" * 200_000)]


def chat(source, **variables):
    variables = {"tools": None, "documents": None, "add_generation_prompt": True, **variables}
    return ChatTemplate(source, Path("x.jinja"), variables, is_structured=False)


GROW = (
    "{{% set ns = namespace(x={}) %}}{{% for _ in range(90000) %}}{{% set ns.x = {} %}}{{% endfor %}}{{{{ {{ns.x: ns.x}} }}}}"
)
STEPS, MEMORY, DEEP = "it takes more than 500,000 steps", "its texts and lists take more than 10,", "its values are nested more"
REFUSED, BITS = "SecurityError: access to attribute", "its integers have more than 60 bits"
SAME_HASH = (
    "{{ range(0, 90000 * (2**60 - 1) * 2, (2**60 - 1) * 2 + 1) | unique | list | length }}"  # a set of them takes minutes
)
HOSTILE = {
    STEPS: [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% for a in range(90000) %}{% for b in range(90000) if b < 0 %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        "{% for a in range(90000) %}" + "{% if a %}a{% endif %}" * 999 + "{% endfor %}",
        "{% for a in [[[]] * 999] * 999 recursive %}{{ loop(a) }}{% endfor %}",
    ],
    MEMORY: [
        "{{ 'a' * 10**10 }}",
        "{{ 10**10 * ['a'] }}",
        "{{ messages * 10**6 }}",
        *(GROW.format("'a'", f"ns.x {how} ns.x") for how in "+~"),
        GROW.format("'a'", "ns.x | replace('', ns.x)"),
        GROW.format("'a'", "ns.x.join([ns.x, ns.x])"),
        GROW.format("'a'", "'%s%s' % (ns.x, ns.x)"),
        GROW.format("'a'", "'{0}{0}'.format(ns.x)"),
        GROW.format("[1]", "[ns.x, ns.x]"),
        GROW.format("1", "namespace(a=ns.x, b=ns.x)"),
        "{{ 'a' | center(10**10) }}{{ 'a'.ljust(10**10) }}",
        "{{ ('a' | safe).rjust(10**10) }}",
        "{{ 'a'['zfill'](10**10) }}",
        "{{ 'a\na' | indent(10**10) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%.*f' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ ('{:{}}' | safe).format(1, 10**9) }}",
        "{{ '{a:{b}}'.format_map({'a': 1, 'b': 10**9}) }}",
        "{{ [1] | batch(10**10, 1) | list }}",
        "{{ 1.5 | round(10**10, 'ceil') }}",
        "{{ 5 | round(-10**7) }}",
        "{{ ('a ' * 2 * 10**6) | title | length }}{{ ('a ' * 2 * 10**6) | sort | length }}",
        "{{ range(90000) | map('default', 'b' * 10**6) | join }}",
        "{{ ('b' * 10**6).join(range(90000) | map('string')) }}",
        "{{ ([[1]] * 90000) | sum(start=[]) }}",
        "{{ messages | tojson(indent=10**9) }}",
        "{{ missing | tojson(indent=10**9) }}",
        "{{ [1, 2] | tojson(separators=('a' * 10**6, 'b')) }}",
        "{{ ('a' * 10**6).rfind('a' * 10**5 ~ 'b') }}{{ ('a' * 10**6).strip('b' * 10**6 ~ 'a') }}",
        "{% set x = 'a' * 10**6 %}{% for a in range(90000) %}{{ x[1:] | length }}{% endfor %}",
        "{% set x = 'a' * 10**6 %}{% for a in range(90000) %}{% if x ~ '' == x %}{% endif %}{% endfor %}",
        "{% for a in range(90000) %}" + "a" * 999 + "{% endfor %}",
        "{% macro f() %}" + "a" * 9999 + "{% endmacro %}{% for a in range(9999) %}{{ f() }}{% endfor %}",
        "{% block f %}{% endblock %}{% for a in range(90000) %}{{ self.f() }}{{ self.f() }}{{ self.f() }}{% endfor %}",
        "{% autoescape 'a' | center(10**10) %}{% endautoescape %}",
        "{{ raise_exception('a' * 10**7) }}",
    ],
    DEEP: [GROW.format("1", "(ns.x,)"), "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}"],
    BITS: [GROW.format("3", "ns.x * ns.x"), "{{ 9 ** (9 ** 9) }}", "{{ 0x1000000000000000 | round(-9) }}", SAME_HASH],
    REFUSED: ["{{ 'a'.translate({97: 'a'}) }}", "{{ (1).to_bytes(10**10, 'big') }}"],
    "it has more than 100,000 characters": ["a" * 100_001],
    "No filter named 'wordwrap'": ["{{ 'a' | wordwrap }}"],
    "'lipsum' is undefined": ["{{ lipsum(10**10) }}"],
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_templates_end_in_words(message):
    for source in HOSTILE[message]:
        for use in (lambda: chat(source).check(), lambda: chat(source)("a", "b")):  # noqa: B023
            with pytest.raises(ModelError) as error:
                use()
            assert str(error.value).startswith("x.jinja: the chat template cannot be used: "), source
            assert message in str(error.value), (source, str(error.value)[:200])
            assert len(str(error.value)) < 1100


VALID = {
    "turns": """
{%- macro turn(role, text) -%}<|start|>{{ role }}
{{ text | trim }}<|end|>
{% endmacro -%}
{%- set ns = namespace(last=-1, seen=[]) -%}
{%- for message in messages[::-1] %}
{%- set at = (messages | length - 1) - loop.index0 %}
{%- if ns.last < 0 and message.role == "document" and not message.content.startswith("<x>") %}
{%- set ns.last = at %}{% endif %}{% endfor %}
{%- for message in messages -%}
{%- set content = message.content if message.content is string else "" -%}
{%- set thought = "" -%}
{%- if "</think>" in content -%}
{%- set thought = content.split("</think>")[0].rstrip("\\n").split("<think>")[-1].lstrip("\\n") -%}
{%- set content = content.split("</think>")[-1].lstrip("\\n") -%}{%- endif -%}
{%- set ns.seen = ns.seen + [message["role"]] -%}
{{ turn("user" if loop.first else message.role, thought ~ "|" + content) }}
{%- if loop.last and loop.index0 >= ns.last %}{{ ns.seen | join(", ") }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|start|>answer{% endif %}""",
    "filters": """
{%- set first = messages | selectattr("role", "eq", "query") | map(attribute="content") | first | default("none", true) -%}
{{ first | upper | replace("A", "<a>") | indent(2) }}{{ messages | map(attribute="role") | join(";") | title }}
{{ messages | tojson }}{{ {"a": [1, 2.5, none], "b": {}} | tojson(indent=4) }}{{ {"b": 1, "a": 2} | dictsort }}
{{ "%-9s|%3d" % ("ab", 7) }}{{ "{:>9}|{a!r:.2}".format("ab", a="xyz") }}{{ "%s" | format(first) | length }}
{%- for row in [3, 1, 2] | sort | batch(2, 0) %}{{ row | list }}{% endfor %}{{ [1, 2] | sum }}
{%- for k, v in {"a": 1}.items() %}{{ k.center(5) }}{{ v * 3 - 1 }}{% else %}no{% endfor %}{{ 7 // 2 }}{{ 2 ** 10 }}{{ -7 % 3 }}
{{ messages[0].content[:20] }}{{ messages | map(attribute="content") | map("length") | list }}{{ loop is defined }}
{%- filter upper %}{{ cycler("a", "b").next() }}{% endfilter %}{% set x %}<{{ first | e }}>{% endset %}{{ x | safe }}
{{ first | int(5) }}{{ [first, ""] | unique | reject("eq", "") | list | length }}""",
}


@pytest.mark.parametrize("name", VALID)
def test_valid_templates_say_what_they_say_without_bounds(name):
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    plain.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    template = chat(VALID[name])
    template.check()
    for query, document in PAIRS:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        assert template(query, document) == plain.from_string(VALID[name]).render(messages=messages, **template.variables)


def test_each_chat_has_bounds_of_its_own_in_any_thread():
    template = chat("{% for a in range(9000) %}{% endfor %}{{ messages }}")
    texts = {}

    def use(name):
        for _ in range(20):
            texts[name] = template(name, "b")

    callers = [threading.Thread(target=use, args=(name,)) for name in "abcd"]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert texts == {name: template(name, "b") for name in "abcd"}
