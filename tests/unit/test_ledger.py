"""The ledger printed and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlib.cost import prefill_s
from kvlib.errors import ConfigError
from kvlib.ledger import GPU, MODEL, LONG_DOCUMENT, SHORT_CHAT, USERS, Entry, Line, ideal_entry, ledger, read_ledger
from kvlib.planner import returning
from kvlib.specs import get_gpu, get_model

PRINTED = ledger([ideal_entry(user) for user in USERS])


def test_the_ideal_entry_is_slots_by_length():
    """426,788 slots of Llama-3-8B beside its weights on 80 GB, over 499 and 8,772 tokens: 855.3 and 48.7, so 855 and 48 fit."""
    assert [ideal_entry(user).requests_held for user in USERS] == [855, 48]


def test_what_is_printed_is_read_back():
    entries = [Entry(SHORT_CHAT, 1234, 80, 0.00752), Entry(LONG_DOCUMENT, 48, 8772, 1.88)]
    assert read_ledger(ledger(entries)) == [
        Line("short chat", "", "1,234", "80", "7.52"), Line("long document", "", "48", "8,772", "1,880"),
    ]


def test_words_above_a_table_name_its_variant():
    lines = read_ledger(f"CPU copies\n{PRINTED}\n\nGPU copies\n{PRINTED}")
    assert [line.variant for line in lines] == ["CPU copies", "CPU copies", "GPU copies", "GPU copies"]


def test_a_second_table_for_comparison_is_left_out():
    assert read_ledger(f"{PRINTED}\n\n{ledger([Entry(SHORT_CHAT, 1, 2, 3.0)])}") == read_ledger(PRINTED)


def test_sentences_below_a_table_are_no_lines():
    assert read_ledger(f"{PRINTED}\nshort chat: 55 ms without the cache") == read_ledger(PRINTED)


def test_a_variant_may_stand_behind_the_name():
    line = read_ledger(PRINTED.replace("short chat   ", "short chat, Max"))[0]
    assert (line.user, line.variant) == ("short chat", "Max")


@pytest.mark.parametrize("text, named", [
    ("", "expected a table"),
    ("a | b\nc | d", "expected a table"),
    (PRINTED.replace("short chat   ", "somebody else"), "somebody else"),
    (PRINTED + "\nshort chat | 1", "columns"),
])
def test_what_is_no_ledger_is_refused(text, named):
    with pytest.raises(ConfigError, match=named):
        read_ledger(text)


def test_the_numbers_in_the_notes_are_computed():
    """Lines 7 and 15 of book/ledger.md: what a second visit holds, and how long it takes without any cache."""
    notes = (Path(__file__).resolve().parents[2] / "book" / "ledger.md").read_text("utf-8")
    visits = [returning(user.final_tokens, SHORT_CHAT.num_input_tokens, user.num_output_tokens) for user in USERS]
    held = " and ".join(f"{visit.input_tokens + visit.output_tokens:,.0f}" for visit in visits)
    waits = [prefill_s(get_model(MODEL), get_gpu(GPU), round(visit.input_tokens)) for visit in visits]
    assert f"({held} tokens)" in notes
    assert f"without it they would wait {1e3 * waits[0]:.0f} and {1e3 * waits[1]:.0f} ms" in notes
