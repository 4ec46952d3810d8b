"""Running a model's template safely."""

import sys
from datetime import UTC, datetime

import pytest

from engine.errors import TemplateError
from engine.text import sandbox
from engine.text.sandbox import CompiledTemplate


def compiled(source):
    return CompiledTemplate(
        source, name="m/template", now=lambda: datetime(2024, 7, 26, tzinfo=UTC)
    )


def render(source, **variables):
    return compiled(source).render(variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ('{{ {"b": "é<&>", "a": 1} | tojson }}', '{"b": "é<&>", "a": 1}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% set n = namespace(x=1) %}{% set n.x = n.x + 1 %}{{ n.x }}", "2"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{% generation %}x{{ y }}{% endgeneration %}", "x3"),
        ("{{ none_such }}{{ 'a' ~ 1 }}{{ 7 % 4 }}{{ '%s!' % 'x' }}", "a13x!"),
    ],
)
def test_templates_find_what_they_use(source, expected):
    assert render(source, y=3) == expected


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        pytest.param("a\n{{ raise_exception('no tools') }}", "line 2: no tools", id="refusal"),
        pytest.param("\n\n{{ 1 / 0 }}", "line 3: division by zero", id="arithmetic"),
        pytest.param("{{ 'a' + 1 }}", "line 1: can only concatenate", id="types"),
        pytest.param("{{ x.y.z }}", "line 1: 'x' is undefined", id="undefined"),
        pytest.param("{{ object() | tojson }}", "line 1", id="no such function"),
        pytest.param("{{ ''.__class__.__mro__ }}", "unsafe", id="python's insides"),
        pytest.param("{{ y.append(3) }}", "unsafe|not safely", id="changing what it was given"),
        pytest.param(
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "without end", id="recursion"
        ),
    ],
)
def test_a_failure_names_template_line_and_reason(source, problem):
    with pytest.raises(TemplateError, match=problem) as failed:
        render(source, y=[1])
    assert str(failed.value).startswith("m/template")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a'.ljust(9999999999) }}",
        "{{ 'a'.zfill(width) }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ 'a' | indent(9999999999) }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('\\t' * 1000000).expandtabs(1000000) }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ '%.*f' % (99999999, 1.5) }}",
        "{{ '{:{}}'.format(1, 9999999999) }}",
        "{{ '{0:{w}}'.format(1, w=9999999999) }}",
        "{{ '{:{}}' | format(1, 9999999999) }}",
        "{{ (['a' * 1000000] * 1000) | join }}",
        "{{ ('a' * 1000000).join(['b'] * 1000) }}",
        "{{ ('a' * 1000000) | join('b' * 1000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000) }}",
        "{{ ('a' * 1000000) | replace('', 'b' * 1000) }}",
        "{{ [[1]] | tojson(indent=99999999) }}",
        "{{ [1] | slice(99999999) | list }}",
        "{{ [1] | batch(99999999, 0) | list }}",
        "{{ (5).to_bytes(99999999, 'big') }}",
        "{{ ('a' * 50000000) ~ ('a' * 50000000) }}",
        "{{ range(99999999) | list }}",
        "{{ 'ab' | wordwrap(99999999) }}",
    ],
)
def test_no_method_or_filter_makes_a_string_out_of_all_proportion(source):
    with pytest.raises(TemplateError, match="is too large"):
        render(source, width=9999999999)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ text.replace('x', '<|a_rather_long_mark|>' * 9) | length }}", str(2**22)),
        ("{{ 'a'.ljust(3) }}|{{ 'a' | center(3) }}|{{ 'b' | indent(2, true) }}", "a  | a |  b"),
        ("{{ '{:>3}'.format(1) }}{{ '%02d' | format(7) }}{{ 'a,b'.split(',', 1)[1] }}", "  107b"),
    ],
)
def test_methods_and_filters_in_proportion_are_left_alone(source, expected):
    assert render(source, text="a" * 2**22) == expected


def test_a_syntax_error_names_its_line():
    with pytest.raises(TemplateError, match="m/template, line 2: "):
        compiled("a\n{% if %}")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("{{ 'a' * 1000000000000 }}", id="a long text"),
        pytest.param("{{ [1] * 1000000000000 }}", id="a long list"),
        pytest.param("{{ 9 ** 999999999 }}", id="a large number"),
        pytest.param("{{ '%999999999999d' % 1 }}", id="a wide field"),
        pytest.param(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            id="nested loops",
        ),
        pytest.param("{% for i in range(100000000000) %}{% endfor %}", id="a long loop"),
        pytest.param(
            "{% set n = namespace(s='aaaa') %}"
            "{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
            id="doubling",
        ),
        pytest.param(
            "{% set n = namespace(s='aaaa') %}"
            "{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
            id="doubling by another operator",
        ),
        pytest.param(
            "{% set n = namespace(s=[1]) %}"
            "{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
            id="doubling by nesting, printed",
        ),
        pytest.param(
            "{% set n = namespace(s=[1]) %}"
            "{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}",
            id="doubling by nesting, as JSON",
        ),
        pytest.param(
            "{% set a = [1] * 9999 %}{% for i in a %}{% for j in a %}{% endfor %}{% endfor %}",
            id="nested loops over lists",
        ),
        pytest.param("{{ lipsum(n=100) }}", id="a text of jinja2's own"),
        pytest.param(
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", id="a macro that calls itself"
        ),
    ],
)
def test_a_hostile_template_is_stopped(source):
    with pytest.raises(TemplateError, match="m/template, line 1: "):
        render(source)


def test_output_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_PROMPT_CHARACTERS", 100)
    with pytest.raises(TemplateError, match="the prompt passes 100 characters"):
        render("{% for i in range(1000) %}aaa{% endfor %}")


def test_a_template_that_prints_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_SECONDS", -1.0)
    with pytest.raises(TemplateError, match="ran for more than"):
        render("a{{ 1 }}")


def test_each_rendering_has_its_own_bounds(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_LINES", 100)
    template = compiled("{% for i in range(9) %}{{ i }}{% endfor %}")
    assert template.render({}) == template.render({}) == "012345678"
    with pytest.raises(TemplateError, match="executes more than 100 lines"):
        compiled("{% for i in range(99) %}{{ i }}{% endfor %}").render({})


def test_large_numbers_that_are_values_pass():
    source = "{{ nothing | default(1764547200123) }} {{ '%d' % time }} {{ time | int + 1 }}"
    assert render(source, time=1764547200123).split() == ["1764547200123"] * 2 + ["1764547200124"]


def test_a_trace_function_of_somebody_else_is_put_back():
    before = sys.gettrace()
    render("{{ 1 }}")
    assert sys.gettrace() is before
