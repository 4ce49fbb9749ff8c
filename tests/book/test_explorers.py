"""Explorers and exercises in the browser: the first drag, the live state, the keyboard, files, links, answers."""

from __future__ import annotations

import json
import random
import re

import pytest
from conftest import SITE, pages

from kvlib.explore import EXERCISES, REGISTRY, Problem, check_answer

PLACES = {
    item_id: path
    for path in pages()
    for item_id in re.findall(r'data-(?:explorer|exercise)="([^"]+)"', (SITE / path).read_text(encoding="utf-8"))
}
EXPLORER_PAGES = sorted({path for item_id, path in PLACES.items() if REGISTRY.find(item_id)})
LIVE_TIMEOUT_MS = 60_000

STATE = """section => {
  const picture = section.querySelector('.kv-picture');
  const plot = picture._fullLayout ? JSON.stringify([picture.data, picture.layout]) : picture.innerHTML;
  return [plot, section.querySelector('.kv-title').textContent, section.querySelector('.kv-numbers').textContent].join('|');
}"""


def seen(state):
    """What of a state a reader can see change."""
    return [state["title"], state["picture"], state["table"]]


def unfold(section):
    section.evaluate("s => s.querySelectorAll('details').forEach(d => d.open = true)")


def section_of(page, item_id):
    section = page.locator(f'[data-explorer="{item_id}"], [data-exercise="{item_id}"]').first
    section.scroll_into_view_if_needed()
    unfold(section)
    return section


def test_every_explorer_and_exercise_stands_on_a_page():
    assert sorted(PLACES) == sorted([*REGISTRY, *EXERCISES])


@pytest.mark.parametrize("path", EXPLORER_PAGES)
def test_every_control_moves_its_figure_from_the_star(open_page, path):
    page, watch = open_page(path)
    for item_id in [i for i, place in PLACES.items() if place == path and REGISTRY.find(i)]:
        explorer, section = REGISTRY[item_id], section_of(page, item_id)
        inputs = section.locator(".kv-control")
        for i, control in enumerate(explorer.controls):
            if control.positions is None:
                continue
            star = [explorer.state({control.name: p}) for p in control.positions]
            target = next(i for i, s in enumerate(star) if "error" not in s and seen(s) != seen(explorer.view().to_dict()))
            section.get_by_role("button", name="Reset").click()
            page.wait_for_function("s => s.querySelector('.kv-status').textContent === 'precomputed'", arg=section.element_handle())
            before = section.evaluate(STATE)
            field = inputs.nth(i).locator("input, select").first
            if control.kind == "list":
                field.select_option(index=target)
            elif control.kind == "toggle":
                field.click()
            else:
                field.evaluate("(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", str(target))
            page.wait_for_function(f"([s, before]) => ({STATE})(s) !== before", arg=[section.element_handle(), before], timeout=20_000)
            assert section.locator(".kv-status").text_content() == "precomputed", (item_id, control.name)
            assert section.locator(".kv-title").text_content() == star[target]["title"]
    watch.assert_quiet()


def test_keyboard_moves_a_slider_and_names_its_value(open_page):
    page, _ = open_page(PLACES["kv_cache.wall"])
    slider = page.locator('[data-explorer="kv_cache.wall"] input[type=range]').first
    before = slider.get_attribute("aria-valuetext")
    slider.focus()
    slider.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") != before
    assert page.evaluate("document.activeElement.labels[0].textContent") == "Context per request"


def settings_of(explorer, seed):
    """A setting that moves at least two controls where there are two."""
    draw = random.Random(seed)
    moved = [c for c in explorer.controls if c.positions is not None]
    return {c.name: draw.choice(c.positions) for c in draw.sample(moved, min(len(moved), 3))}


def test_live_states_equal_cpython_byte_for_byte(open_page, address):
    page, watch = open_page(PLACES["kv_cache.wall"])
    asked = [("explorer", i, json.dumps(settings_of(REGISTRY[i], seed))) for i in REGISTRY for seed in (1, 2)]
    asked += [("explorer", "kv_cache.engine_log", json.dumps({"log": "nothing of the kind"}))]
    asked += [("exercise", i, json.dumps({"seed": 4242})) for i in EXERCISES]
    answers = page.evaluate(
        """async ([base, asked]) => {
          const worker = new Worker(base + "worker.mjs", {type: "module"});
          const heard = () => new Promise(done => { worker.onmessage = ({data}) => done(data); });
          worker.postMessage({start: {pyodide: [base + "kv/pyodide/"], kvlib: base + "kv/kvlib.zip"}});
          const ready = await heard();
          if (!ready.ready) throw new Error(ready.failed);
          const answers = [];
          for (const [registry, id, request] of asked) {
            worker.postMessage({call: 1, registry, id, request});
            answers.push((await heard()).json);
          }
          return answers;
        }""",
        [address + "_static/", asked],
    )
    for (registry, item_id, request), answer in zip(asked, answers):
        wanted = (REGISTRY if registry == "explorer" else EXERCISES)[item_id].json(request)
        assert answer == wanted, (item_id, request)
    watch.assert_quiet()


def test_two_sliders_together_are_computed_live(open_page):
    page, watch = open_page(PLACES["kv_cache.wall"])
    section = section_of(page, "kv_cache.wall")
    section.locator("select").first.select_option("2")
    section.locator("input[type=range]").first.press("ArrowRight")
    page.wait_for_function("s => s.querySelector('.kv-status').textContent === 'live'", arg=section.element_handle(), timeout=LIVE_TIMEOUT_MS)
    spec = REGISTRY["kv_cache.wall"].controls
    context = spec[0].positions[spec[0].positions.index(500) + 1]
    wanted = REGISTRY["kv_cache.wall"].view(context=context, attention=spec[1].positions[2])
    assert section.locator(".kv-title").text_content() == wanted.title
    watch.assert_quiet()


GOOD_CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 4, "intermediate_size": 8192, "vocab_size": 32000,
}
BAD_CONFIGS = {
    "empty.json": b"", "not.json": b"<html>", "cut.json": b'{"model_type": "llama", "hidden', "list.json": b"[1]",
    "negative.json": json.dumps({**GOOD_CONFIG, "num_hidden_layers": -1}).encode(),
    "zero.json": json.dumps({**GOOD_CONFIG, "num_key_value_heads": 0}).encode(),
    "word.json": json.dumps({**GOOD_CONFIG, "hidden_size": "big"}).encode(),
    "nan.json": json.dumps({**GOOD_CONFIG, "hidden_size": float("nan")}).encode(),
    "unknown.json": json.dumps({**GOOD_CONFIG, "model_type": "mystery"}).encode(),
    "missing.json": b'{"hidden_size": 4096}',
    "huge.json": b" " * (9 * 2**20),
}


def test_a_dropped_config_is_read_and_a_bad_one_changes_nothing(open_page):
    page, watch = open_page(PLACES["kv_cache.size"])
    section = section_of(page, "kv_cache.size")
    status = section.locator(".kv-status")
    upload = section.locator("input[type=file]")

    def drop(name, content):
        upload.set_input_files({"name": name, "mimeType": "application/json", "buffer": content})

    drop("mine.json", json.dumps(GOOD_CONFIG).encode())
    page.wait_for_function("s => s.querySelector('.kv-status').textContent === 'live'", arg=section.element_handle(), timeout=LIVE_TIMEOUT_MS)
    per_token = 2 * 16 * 4 * (2048 // 32) * 2
    assert f"{per_token:,}" in section.locator(".kv-numbers").text_content()
    good = section.evaluate(STATE)
    for name, content in BAD_CONFIGS.items():
        said = status.text_content()
        drop(name, content)
        page.wait_for_function("([s, said]) => { const t = s.querySelector('.kv-status').textContent; return t.startsWith('not possible') && t !== said; }",
                               arg=[section.element_handle(), said], timeout=LIVE_TIMEOUT_MS)
        assert section.evaluate(STATE) == good, name
    watch.assert_quiet()


DROP = """([place, name, text]) => {
  const dropped = new DataTransfer();
  dropped.items.add(new File([text], name));
  place.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: dropped }));
}"""


@pytest.mark.parametrize("place", [".kv-file:has-text('config.json')", ".kv-figure"])
def test_a_file_goes_where_it_is_dropped_or_where_its_name_belongs(open_page, place):
    """The planner takes a trace and a config; the trace's control stands first."""
    page, watch = open_page(PLACES["plan.waterfall"])
    section = section_of(page, "plan.waterfall")
    target = section.locator(place).first.element_handle()
    page.evaluate(DROP, [target, "config.json", json.dumps(GOOD_CONFIG)])
    page.wait_for_function("s => s.querySelector('.kv-status').textContent === 'live'", arg=section.element_handle(), timeout=LIVE_TIMEOUT_MS)
    assert section.locator(".kv-note").text_content().startswith("your model")
    watch.assert_quiet()


def test_a_link_restores_the_sliders(open_page, address):
    page, _ = open_page(PLACES["kv_cache.wall"])
    section = section_of(page, "kv_cache.wall")
    section.locator("select").first.select_option("4")
    section.get_by_role("button", name="Link to this state").click()
    link = page.evaluate("location.href")
    assert "#kv=kv_cache.wall&attention=MLA" in link
    title = section.locator(".kv-title").text_content()
    again, _ = open_page(link.removeprefix(address))
    restored = again.locator('[data-explorer="kv_cache.wall"]')
    again.wait_for_function("([s, title]) => s.querySelector('.kv-title').textContent === title", arg=[restored.element_handle(), title])
    assert restored.locator("select").first.input_value() == "4"


def test_a_link_that_cannot_be_followed_says_so(open_page):
    page, watch = open_page(PLACES["kv_cache.size"] + "#kv=kv_cache.size&gpu=h900&modle=opt-13b&context=2000&config=x.json")
    section = page.locator('[data-explorer="kv_cache.size"]')
    status = section.locator(".kv-status")
    for words in ("GPU has no position “h900”", "no control “modle”", "a file, which a link cannot carry", "stands at its default"):
        assert words in status.text_content()
    assert section.evaluate("s => s.kv.read()") == {**REGISTRY["kv_cache.size"].defaults, "context": 2000}
    section.locator("select").first.select_option("0")
    assert "link" not in status.text_content(), "once a reader moves something, the link is history"
    watch.assert_quiet()


@pytest.mark.parametrize("path", [PLACES["kv_cache.size"], "book/bibliography.html"])
def test_a_link_to_an_unknown_explorer_says_so(open_page, path):
    page, _ = open_page(path + "#kv=kv_cache.siz&gpu=h200")
    notice = page.locator(".bd-article .kv-notice")
    assert "“kv_cache.siz”" in notice.text_content()
    page.evaluate("location.hash = ''")
    notice.wait_for(state="detached")


def test_a_link_to_a_seed_that_is_none_says_so(open_page):
    page, _ = open_page(PLACES["kv_cache_exercises.bytes_per_token"] + "#kv=kv_cache_exercises.bytes_per_token&seed=one")
    reply = page.locator('[data-exercise="kv_cache_exercises.bytes_per_token"] .kv-reply')
    assert "“one”" in reply.text_content()


def test_a_second_link_on_the_same_page_starts_from_the_defaults(open_page):
    page, _ = open_page(PLACES["kv_cache.size"] + "#kv=kv_cache.size&gpu=h200")
    page.evaluate("location.hash = '#kv=kv_cache.size&context=2000'")
    wanted = {**REGISTRY["kv_cache.size"].defaults, "context": 2000}
    page.wait_for_function("document.querySelector('[data-explorer=\"kv_cache.size\"]').kv.read().context === 2000")
    assert page.locator('[data-explorer="kv_cache.size"]').evaluate("s => s.kv.read()") == wanted


def test_the_status_words_are_explained(open_page):
    page, _ = open_page(PLACES["kv_cache.wall"])
    help_box = page.locator('[data-explorer="kv_cache.wall"] .kv-what')
    help_box.locator("summary").click()
    words = help_box.locator("p").text_content()
    for status in ("Precomputed", "Starting Python", "Live", "Not possible", "Live mode unavailable"):
        assert f"{status}:" in words


def test_with_all_controls_open_the_picture_is_in_sight(open_page):
    """At 1280 × 800, scrolled to the controls: the picture of the explorer with the most controls ends above the fold."""
    page, _ = open_page(PLACES["kv_cache.wall"])
    section = page.locator('[data-explorer="kv_cache.wall"]')
    section.locator(".kv-more").evaluate("d => { d.open = true; d.closest('form').scrollIntoView(); }")
    assert section.locator(".kv-picture").evaluate("p => p.getBoundingClientRect().bottom") <= 800


def test_a_prediction_replies_to_the_choice(open_page):
    page, _ = open_page(PLACES["kv_cache.wall"])
    section = page.locator('[data-explorer="kv_cache.wall"]')
    asked = REGISTRY["kv_cache.wall"].predict()
    for i, option in enumerate(asked.options):
        section.locator("input[type=radio]").nth(i).check()
        mark = "✓" if i == asked.answer else "✗"
        assert section.locator(".kv-prediction .kv-reply").text_content() == f"{mark} {option.reply}"


def test_the_page_judges_answers_as_python_does(open_page):
    page, _ = open_page(PLACES["kv_cache_exercises.bytes_per_token"])
    for item_id in EXERCISES:
        problem = EXERCISES[item_id].draw(2)
        if not isinstance(problem, Problem):
            continue
        right = problem.answer
        typed = [repr(right), f"{right:,}", "many", "", str(2 * right), str(right * 1.1), str(-right), "1e999", "0x10", " 12 %"]
        typed += [repr(s.value) for s in problem.slips]
        for text in typed:
            said = page.evaluate("([problem, text]) => kvCheckAnswer(problem, text)", [problem.to_dict(), text])
            wanted = check_answer(problem, text)
            assert (said["right"], said["reply"]) == (wanted.right, wanted.reply), (item_id, text)


def test_an_exercise_draws_other_numbers_and_answers(open_page):
    page, watch = open_page(PLACES["kv_cache_exercises.bytes_per_token"])
    section = section_of(page, "kv_cache_exercises.bytes_per_token")
    section.get_by_role("button", name="Other numbers").click()
    second = EXERCISES["kv_cache_exercises.bytes_per_token"].draw(2)
    page.wait_for_function("([s, q]) => s.querySelector('.kv-question').textContent === q", arg=[section.element_handle(), second.question])
    assert page.evaluate("document.activeElement.textContent") == "Other numbers"  # and a keyboard stays where it was
    section.locator("input[type=text]").fill(str(second.answer))
    section.get_by_role("button", name="Check").click()
    assert section.locator(".kv-reply").text_content() == "✓ Right."
    watch.assert_quiet()


def test_a_search_is_judged_by_a_run(open_page):
    page, watch = open_page(PLACES["kv_cache_exercises.move_the_wall"])
    section = section_of(page, "kv_cache_exercises.move_the_wall")
    search = EXERCISES["kv_cache_exercises.move_the_wall"].draw(1)
    for i, control in enumerate(search.controls):
        index = control.positions.index(search.known[control.name])
        field = section.locator(".kv-control").nth(i).locator("input, select")
        if control.kind == "list":
            field.select_option(index=index)
        else:
            field.evaluate("(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", str(index))
    section.get_by_role("button", name="Check").click()
    page.wait_for_function("s => s.querySelector('.kv-reply').textContent.startsWith('✓')", arg=section.element_handle(), timeout=LIVE_TIMEOUT_MS)
    watch.assert_quiet()


def test_dark_mode_recolors_the_figures(open_page):
    page, _ = open_page(PLACES["kv_cache.wall"])
    ink = "document.querySelector('.kv-plotly .kv-picture')._fullLayout.font.color"
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    page.wait_for_timeout(300)
    light = page.evaluate(ink)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_function(f"{ink} !== '{light}'")


def test_opened_from_disk_the_star_still_answers(browser):
    page = browser.new_context().new_page()
    page.goto((SITE / PLACES["kv_cache.wall"]).as_uri())
    section = page.locator('[data-explorer="kv_cache.wall"]')
    section.locator(".main-svg").first.wait_for()
    before = section.locator(".kv-title").text_content()
    section.locator("input[type=range]").first.press("ArrowRight")
    page.wait_for_function("([s, before]) => s.querySelector('.kv-title').textContent !== before", arg=[section.element_handle(), before])
    unfold(section)
    section.locator("select").first.select_option("2")
    page.wait_for_function("s => s.querySelector('.kv-status').textContent.includes('live mode unavailable')", arg=section.element_handle())
