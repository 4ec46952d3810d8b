"""Tests of engine/models/form.py."""

from dataclasses import replace

import mlx.core as mx
import pytest

from engine.errors import InvalidParams
from engine.models.form import GIB, Stored, WeightForm, choose_form, dtype_name, parse_dtype


def stored(
    *, packed: bool = True, on_cpu: bool = True, gib: float = 8, count: int = GIB // 4
) -> Stored:
    """A quarter of 2^30 weights: 1 GiB in float32."""
    return Stored(
        packed=packed,
        weights_count=count,
        dtype=mx.bfloat16,
        on_cpu=on_cpu,
        available_bytes=int(gib * GIB),
    )


AUTO, DENSE, QUANTIZED = WeightForm.AUTO, WeightForm.DENSE, WeightForm.QUANTIZED


@pytest.mark.parametrize(
    ("here", "form", "dtype", "dense", "chosen"),
    [
        pytest.param(stored(), AUTO, None, True, mx.float32, id="cpu, room: dense float32"),
        pytest.param(stored(gib=1.5), AUTO, None, False, mx.float32, id="cpu, no room: packed"),
        pytest.param(stored(gib=0), DENSE, None, True, mx.float32, id="cpu: dense when asked"),
        pytest.param(stored(), QUANTIZED, None, False, mx.float32, id="cpu: packed when asked"),
        pytest.param(stored(packed=False), AUTO, None, True, mx.float32, id="cpu: 16-bit widened"),
        pytest.param(stored(packed=False, gib=1.5), AUTO, None, True, None, id="cpu: 16-bit kept"),
        pytest.param(stored(gib=1.5), AUTO, mx.bfloat16, True, mx.bfloat16, id="cpu: half fits"),
        pytest.param(stored(gib=1), AUTO, mx.bfloat16, False, mx.bfloat16, id="cpu: half does not"),
        pytest.param(stored(), QUANTIZED, mx.float16, False, mx.float16, id="cpu: scales as asked"),
        pytest.param(stored(on_cpu=False), AUTO, None, False, None, id="gpu: as it is"),
        pytest.param(
            replace(stored(on_cpu=False), dtype=mx.float32, declared=mx.float16),
            AUTO,
            None,
            False,
            mx.float16,
            id="gpu: a converted file's float32 scales become the model's own 16 bits",
        ),
        pytest.param(
            replace(stored(on_cpu=False), dtype=mx.float32),
            AUTO,
            None,
            False,
            None,
            id="gpu: float32 stays where the model says nothing else",
        ),
        pytest.param(
            stored(packed=False, on_cpu=False), AUTO, None, True, None, id="gpu: dense as it is"
        ),
        pytest.param(
            stored(on_cpu=False), DENSE, None, True, mx.bfloat16, id="gpu: unpacked to its own"
        ),
        pytest.param(
            stored(on_cpu=False), AUTO, mx.float16, False, mx.float16, id="gpu: dtype as asked"
        ),
    ],
)
def test_the_form(here, form, dtype, dense, chosen):
    choice = choose_form(here, form, dtype)
    assert (choice.dense, choice.dtype) == (dense, chosen)


def test_the_note_says_what_it_would_have_taken():
    note = choose_form(stored(gib=1.5), AUTO, None).note
    assert "dense ones would take 1.0 of 1.5 GiB available" in note


def test_packed_weights_cannot_be_made_of_dense_ones():
    with pytest.raises(InvalidParams, match="not quantized"):
        choose_form(stored(packed=False), QUANTIZED, None)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float32", mx.float32), ("BF16", mx.bfloat16), ("fp16", mx.float16), (None, None)],
)
def test_dtypes_go_by_several_names(name, dtype):
    assert parse_dtype(name) == dtype


@pytest.mark.parametrize("name", ["int8", "", "float64"])
def test_other_dtypes_are_refused(name):
    with pytest.raises(InvalidParams, match="float32, float16 and bfloat16"):
        parse_dtype(name)


def test_a_dtype_is_named_as_its_option_spells_it():
    assert dtype_name(mx.bfloat16) == "bfloat16"
