"""Speech of eSpeak NG, with the second at which it starts each word: an event of the library, not a measurement."""

import ctypes
import ctypes.util
from typing import Any

import numpy as np
import pytest

_WORD = 1  # kind of the event
_RETRIEVE = 1  # samples go to the callback
_UTF8 = 1


class _Event(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


def say(
    text: str, voice: str = "en-us", words_a_minute: int = 150, gap: int = 0
) -> "tuple[np.ndarray[Any, Any], int, list[float | None]]":
    """Return the samples of a text, their rate, and the second at which every word starts.

    Of a word that it says as one with the word before ("of the"), eSpeak has no start: None.

    In spectrograms, the starts are within 0.02 s of where sounds change; a word that starts with a stop, such as t,
    starts with its closure, which is silent for 0.05 s.

    Args:
        gap: Pause between words, in 10 ms.
    """
    found = ctypes.util.find_library("espeak-ng")
    if found is None:
        pytest.skip("needs a synthesiser: apt-get install espeak-ng")
    library = ctypes.CDLL(found)
    rate = library.espeak_Initialize(_RETRIEVE, 500, None, 0)
    parts = []
    starts: dict[int, float] = {}

    def on_samples(samples: Any, count: int, events: Any) -> int:
        index = 0
        while events[index].kind:
            if events[index].kind == _WORD:
                starts[events[index].text_position - 1] = events[index].sample / rate
            index += 1
        if count > 0:
            parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    types = ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
    callback = ctypes.CFUNCTYPE(ctypes.c_int, *types)(on_samples)
    library.espeak_SetSynthCallback(callback)
    library.espeak_SetVoiceByName(voice.encode())
    library.espeak_SetParameter(1, words_a_minute, 0)
    library.espeak_SetParameter(7, gap, 0)
    encoded = text.encode()
    library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    library.espeak_Terminate()
    places = [place for place, before in enumerate(" " + text[:-1]) if before == " "]
    assert len(starts) > len(places) / 2
    return (
        np.concatenate(parts).astype(np.float32) / 32_768,
        rate,
        [starts.get(place) for place in places],
    )
