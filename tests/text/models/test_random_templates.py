"""Random chat templates, many of them hostile, stay within the bounds of memory and end in a text or in ModelError."""

import random
import tracemalloc
from pathlib import Path

import pytest

from mha_text.models import chat_sandbox
from mha_text.models.chat import ChatTemplate
from mha_text.models.files import ModelError

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::SyntaxWarning")]  # "a"() in a template

COUNT = 500  # templates
FILTERS = """upper title trim list length string tojson sort unique reverse first last max sum int float round(N) join(E)
    replace(E,E) indent(N) center(N) batch(N) batch(N,E) slice(N) default(E) format(E) format(E,E) tojson(indent=N) map('upper')
    map('string') map('join',E) map(attribute='x') select select('gt',E) reject('in',E) groupby('x') items dictsort abs safe e
    urlencode wordcount truncate(N) attr('x') selectattr('role') capitalize random filesizeformat
    map('replace',E,E) wordwrap(N)"""
METHODS = """upper() split() split(E) rsplit(E,N) splitlines() strip(E) rfind(E) replace(E,E) join(E) format(E) format(E,x=E)
    center(N) ljust(N) zfill(N) expandtabs(N) count(E) index(E) items() get(E) partition(E) title() encode() translate(E)
    to_bytes(N) append(E) x keys() values() format_map(E) startswith(E) __class__"""
LEAVES = """'a' 'ab\n' '%s' '%9999999d' '%*d' '{}' '{:>99999}' '{0}{0}' '' 0 1 3 7 99 1000 10000000 2.5 none true x ns.x ns.x ns
    messages ns.y messages[0].content range(3) range(1000) range(99999) [] {} loop.index f namespace dict cycler self"""
OPERATORS = "+ - * / // % ** ~ == < in and or ~ + =="


def expression(draw, depth):
    if depth == 0 or draw.random() < 0.15:
        return draw.choice(LEAVES.split())
    inner = [expression(draw, depth - 1) for _ in range(3)]
    number = draw.choice(["2", "9", "100", "100000", "10**9", inner[1]])

    def call(words):
        return draw.choice(words.split()).replace("N", number).replace("E", inner[2])

    return draw.choice(
        [
            f"({inner[0]} {draw.choice(OPERATORS.split())} {inner[1]})",
            f"({inner[0]} | {call(FILTERS)})",
            f"({inner[0]} | {call(FILTERS)} | {call(FILTERS)})",
            f"({inner[0]}).{call(METHODS)}",
            f"[{inner[0]}, {inner[1]}]",
            f"({inner[0]}, {inner[0]})",
            f"{{{inner[0]}: {inner[1]}}}",
            f"({inner[0]})[{inner[1]}]",
            f"({inner[0]})[{number}:]",
            f"({inner[0]} if {inner[1]} else {inner[2]})",
            f"f({inner[0]})",
            f"namespace(x={inner[0]}, y={inner[1]})",
            f"(-{inner[0]} is {draw.choice(['odd', 'sequence', 'in ' + inner[1], 'string'])})",
        ]
    )


def statement(draw, depth):
    value = expression(draw, draw.choice([0, 1, 1, 2, 3]))
    body = "".join(statement(draw, depth - 1) for _ in range(draw.randrange(1, 4))) if depth else "text\n"
    return draw.choice(
        [
            f"{{{{ {value} }}}}",
            f"{{% set ns.{draw.choice('xy')} = {value} %}}",
            f"{{% set ns.x = ns.x {draw.choice('+*~')} ns.x %}}",
            f"{{% set x = {value} %}}",
            f"{{% for v in {draw.choice(['range(99999)', 'range(30)', value])} %}}{body}{{% endfor %}}",
            f"{{% for v in {value} if {expression(draw, 1)} %}}{body}{{% else %}}{body}{{% endfor %}}",
            f"{{% for v in {value} recursive %}}{body}{{{{ loop(v) }}}}{{% endfor %}}",
            f"{{% if {value} %}}{body}{{% else %}}{body}{{% endif %}}",
            f"{{% macro f(v) %}}{body}{{% endmacro %}}",
            f"{{% set x %}}{body}{{% endset %}}",
            f"{{% filter {draw.choice(['upper', 'indent(99)', 'trim'])} %}}{body}{{% endfilter %}}",
            f"{{% call f({value}) %}}{body}{{% endcall %}}",
        ]
    )


def test_random_templates_end_in_a_text_or_in_words():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    draw, texts, exceeded = random.Random(seed), 0, 0
    tracemalloc.start()
    try:
        for _ in range(COUNT):
            source = "{% set ns = namespace(x='a', y=[1]) %}{% macro f(v) %}{{ v }}{% endmacro %}" + "".join(
                statement(draw, draw.randrange(3)) for _ in range(draw.randrange(1, 4))
            )
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                text = ChatTemplate(source, Path("x.jinja"), {"x": {"x": 1}}, False)("query", "a document " * 20)
                assert len(text) <= 12 * chat_sandbox.MEMORY, source
                texts += 1
            except ModelError as error:
                exceeded += "OverflowError: it" in str(error)
            except Exception:
                print(source)
                raise
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < 12 * chat_sandbox.MEMORY, f"{peak:,} bytes: {source}"
    finally:
        tracemalloc.stop()
    print(f"{texts} texts, {exceeded} templates exceeded a bound")
    assert texts > COUNT / 30 and exceeded > COUNT / 100
