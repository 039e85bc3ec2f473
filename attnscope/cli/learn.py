"""The command `attnscope learn`: lessons on attention, on the reader's own sentence."""

import json
import shlex
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import UsageError, did_you_mean
from attnscope.cli.next_command import SAMPLE, carried, suggest
from attnscope.cli.parameters import Given
from attnscope.cli.process import print_notice
from attnscope.cli.settings import config_folder
from attnscope.request.arguments import LESSON_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnscope.findings.lesson import Lesson
    from attnscope.request.run_config import RunConfig
    from attnscope.studies.learn.material import Material

EXAMPLES = """
attnscope learn
attnscope learn scores
attnscope learn softmax "The river rose and the bank broke" --plain
attnscope learn mask --mask causal -o mask.html
attnscope learn heads --layer 1 --json | jq .steps[0].reveal
"""
_CHANGES = "t temperature 0.5, m other mask, w swap a word"
_CHANGE_KEYS = ("t", "m", "w")
_KEYS = f"Enter next, b back, {_CHANGES}, q quit"


def learn(options: Given) -> None:
    """Learn how attention works, with the numbers of your own sentence.

    Eight lessons of a few minutes each: scores, scale, mask, softmax, output, heads, directions and sinks. A step shows
    a formula with the numbers of one row, asks you to predict, and answers with what the model computed. Without
    LESSON, lists them with your progress. In a terminal, letters answer, and keys change the mask, the temperature or a
    word; in a pipe, or with --plain, the whole lesson is printed with the answers at its end.
    """
    from attnscope.cli.deliver import check_output, deliver
    from attnscope.cli.progress import progress

    if options.lesson is None:
        _print_list(options)
        return
    if options.lesson not in LESSON_NAMES:
        hint = did_you_mean(options.lesson, LESSON_NAMES)
        if " " in options.lesson:
            quoted = shlex.quote(options.lesson)
            hint = f"name one before the text, such as attnscope learn scores {quoted}"
        raise UsageError(f"no such lesson '{options.lesson}'", hint=hint)
    check_output(options, "learn")
    run = _run_config(options)
    from attnscope.studies.learn.lessons import make_lesson
    from attnscope.studies.learn.material import gather

    with progress(quiet=options.quiet) as on_progress:
        material = gather(run, options.temperature or 1.0, on_progress)
        lesson = make_lesson(options.lesson, material)
    if (
        options.plain
        or options.output is not None
        or options.format == "json"
        or not _is_interactive()
    ):
        deliver(lesson, options)
        return
    right = _Walk(options, material, lesson).walk()
    if right is not None:
        _keep_progress(options.lesson, right, len(lesson.steps))
        following = LESSON_NAMES[(LESSON_NAMES.index(options.lesson) + 1) % len(LESSON_NAMES)]
        text = [] if options.text is None else [options.text]
        suggest(
            ["learn", following, *text, *carried("learn", "learn", options.command_line)], options
        )


def _run_config(options: Given) -> "RunConfig":
    from attnscope.cli.run_config import read_texts, run_config

    texts = read_texts(Given(**{**vars(options), "text": options.text or SAMPLE, "context": None}))
    return run_config(texts, options)


def _is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _print_list(options: Given) -> None:
    from attnscope.studies.learn.lessons import LESSONS

    done = read_progress()
    for name, plan in LESSONS.items():
        state = ""
        if name in done:
            state = f"  done, {done[name]['right']} of {done[name]['questions']} right"
        print(f"{name:10}  {plan.title.partition(': ')[2]}{state}")
    sys.stdout.flush()
    open_lessons = [name for name in LESSONS if name not in done]
    if open_lessons:
        suggest(["learn", open_lessons[0]], options)


class _Walk:
    """A walk through a lesson with the keyboard."""

    def __init__(self, options: Given, material: "Material", lesson: "Lesson") -> None:
        self._given = options
        self._material = material
        self._lesson = lesson
        self._right: dict[int, bool] = {}  # step to whether its first answer was right

    def walk(self) -> int | None:
        """Show step after step; return how many questions were answered right, None if the reader left."""
        from attnscope.studies.learn.screen import lesson_header, question_parts, step_parts

        self._draw(lesson_header)
        index = 0
        while index < len(self._lesson.steps):
            step = self._lesson.steps[index]
            print()
            self._draw(lambda lesson, _, n=index, s=step: step_parts(lesson, n + 1, s))
            self._draw(lambda _lesson, _settings, s=step: question_parts(s))
            answer = self._answer(len(step.choices))
            if answer is None:
                return None
            if isinstance(answer, str):
                self._change(answer)
                continue
            self._right.setdefault(index, answer == step.answer)
            self._reveal(index, answer)
            key = self._choose()
            if key == "q":
                return None
            index = max(0, index - 1) if key == "b" else index + (key == "next")
        return sum(self._right.values())

    def _answer(self, count: int) -> int | str | None:
        """Read the letter of a choice, or a key that changes something; None to leave."""
        from attnscope.studies.learn.screen import LETTERS

        letters = LETTERS[:count]
        sys.stdout.write(f"  your answer ({letters[0]}-{letters[-1]}; {_CHANGES}, q quit): ")
        sys.stdout.flush()
        while True:
            key = read_key()
            if key in ("q", "\x04", ""):
                print()
                return None
            if key in letters:
                print(key)
                return letters.index(key)
            if key in _CHANGE_KEYS:
                print(key)
                return key

    def _reveal(self, index: int, answer: int) -> None:
        from attnscope.studies.learn.screen import reveal_parts

        step = self._lesson.steps[index]
        self._draw(lambda _, settings: reveal_parts(step, settings, right=answer == step.answer))

    def _choose(self) -> str:
        """Read what comes after an answer: `next`, `b`, `q`, or `again` after a change."""
        print(f"  {_KEYS}")
        while True:
            key = read_key()
            if key in ("\n", "\r", " "):
                return "next"
            if key in ("b", "q"):
                return key
            if key in ("\x04", ""):
                return "q"
            if key in _CHANGE_KEYS:
                self._change(key)
                return "again"

    def _change(self, key: str) -> None:
        """Change the temperature, the mask or a word, and make the lesson again."""
        from msgspec.structs import replace

        from attnscope.request.masks.expression import parse_mask, spell_mask
        from attnscope.studies.learn.lessons import make_lesson
        from attnscope.studies.learn.material import Material, gather

        material = self._material
        if key == "t":
            temperature = 1.0 if material.temperature != 1.0 else 0.5
            self._material = Material(
                material.run, material.explanation, material.session, temperature
            )
            changed = f"temperature {temperature:g}"
        elif key == "m":
            used = material.explanation.mask.used
            other = "bidirectional" if used == "causal" else "causal"
            self._material = gather(
                replace(material.run, mask=parse_mask(other)), material.temperature
            )
            changed = f"mask {spell_mask(parse_mask(other))}"
            if material.query == len(material.explanation.tokens) - 1:
                changed += "; the last token sees every key under both, another may not (--query 1)"
        else:
            changed = self._swap_word()
        self._lesson = make_lesson(self._lesson.name, self._material)
        print(f"  now: {changed}")

    def _swap_word(self) -> str:
        from msgspec.structs import replace

        from attnscope.base.system.escape import escape_control
        from attnscope.studies.learn.material import gather

        run = self._material.run
        text = run.texts[0].text
        old = input("  word to replace: ").strip()
        if old not in text.split():
            return f"nothing; press w, then type one of these words alone: {escape_control(text)}"
        new = input("  replace it by: ").strip()
        if not new:
            return f"nothing; the words are {escape_control(text)}"
        changed = " ".join(new if word == old else word for word in text.split())
        self._material = gather(
            replace(run, texts=(replace(run.texts[0], text=changed),), query=None),
            self._material.temperature,
        )
        return escape_control(changed)

    def _draw(self, parts: Any) -> None:
        from attnscope.cli.deliver import console
        from attnscope.views.settings import DisplaySettings
        from attnscope.views.terminal import draw

        settings = DisplaySettings(precision=self._given.precision)
        draw(list(parts(self._lesson, settings)), console(self._given.color))
        sys.stdout.flush()


def read_key() -> str:
    """Read one key of a terminal; empty at the end of input."""
    with _single_keys():
        return sys.stdin.read(1)


@contextmanager
def _single_keys() -> "Iterator[None]":
    """Let a terminal give keys at once, without Enter; Windows reads lines."""
    try:
        import termios
        import tty
    except ImportError:
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _progress_file() -> Path:
    return config_folder() / "learned.json"


def read_progress() -> dict[str, dict[str, int]]:
    """Return the finished lessons, with the numbers of right answers and of questions; none if they cannot be read."""
    with suppress(OSError, ValueError):
        finished = json.loads(_progress_file().read_text(encoding="utf-8"))
        if isinstance(finished, dict):
            return {
                name: {"right": int(result["right"]), "questions": int(result["questions"])}
                for name, result in finished.items()
                if name in LESSON_NAMES
                and isinstance(result, dict)
                and {"right", "questions"} <= set(result)
            }
    return {}


def _keep_progress(name: str, right: int, questions: int) -> None:
    """Note that a lesson is finished."""
    from attnscope.base.files.atomic import write_atomic

    finished = read_progress() | {name: {"right": right, "questions": questions}}
    path = _progress_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, [json.dumps(finished).encode()], force=True)
    except OSError as e:
        print_notice("note", f"progress is not kept ({e.strerror})")
    print(f"  {right} of {questions} right")
